"Draws beside other threads, and inside the libraries that draw for us."
import threading
from concurrent.futures import ThreadPoolExecutor
import torch
from torch.distributions import Uniform
from fdgnb.core import drawing_from, generator, seeded


def draw_three_ways(_=None):
    with drawing_from(generator(0, 7)):
        return Uniform(0., 1.).rsample((3,)), torch.randperm(9), torch.empty(2).normal_()


def test_draws_in_threads_are_those_of_the_generator():
    "Conftest watches that the global state stays."
    g = generator(0, 7)
    wanted = torch.rand(3, generator=g), torch.randperm(9, generator=g), torch.empty(2).normal_(generator=g)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(draw_three_ways, range(40)): assert all(map(torch.equal, got, wanted))
    with drawing_from(generator(1)): own = torch.rand(3, generator=generator(0, 7))       # one that a draw names
    assert torch.equal(own, wanted[0])


def test_seeded_weights_leave_a_thread_of_the_global_generator_alone():
    def weight():
        with seeded(0): return torch.nn.Linear(2, 2).weight.detach()
    first, drawn, ended = weight(), [], threading.Event()
    def draw():
        while len(drawn) < 10 or not ended.is_set(): drawn.append(torch.rand(50).sum().item())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        thread = threading.Thread(target=draw)
        thread.start()
        assert all(torch.equal(weight(), first) for _ in range(20))
        ended.set()
        thread.join()
        torch.manual_seed(1)
        assert drawn == [torch.rand(50).sum().item() for _ in drawn]
