"What core's page does not show: errors of odd values, draws beside other threads, files that are none."
import os, threading
from concurrent.futures import ThreadPoolExecutor
import pytest
import torch
from torch.distributions import Uniform
from conftest import says
from fdgnb.core import (FdgnbError, Registry, atomic_write, drawing_from, echo, generator, nearest, parse_json,
                        read_regular, seeded, writing)


def test_the_nearest_of_none_few_and_many():
    many = [f"model{i}" for i in range(9)]
    assert nearest("zzz", ["fedavg"]) == "; known: fedavg" and nearest("fedavg", []) == "; known: none"
    assert nearest("modell5", many) == "; did you mean 'model5'? nearest of 9: model5, model8, model7"
    assert nearest("zzz", many) == "; none of 9 names is near it"
    says(lambda: Registry("toy").get(["ball"]), "unknown toy ['ball']")


def test_an_error_is_one_line_of_limited_length():
    assert str(FdgnbError("two\nlines")) == "two lines" and len(str(FdgnbError("x"*9999))) < 1000
    assert [len(echo(v)) for v in ("x"*10_000, torch.zeros(99, 99))] == [200, 200]


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


def test_folders_pipes_and_what_lies_below_a_file(tmp_path):
    os.mkfifo(tmp_path/"pipe")
    for bad in (tmp_path, tmp_path/"pipe"): says(lambda: read_regular(bad), "no regular file")
    file = atomic_write(tmp_path/"a", "")
    with pytest.raises(FdgnbError, match="cannot be written"), writing(file/"b"): atomic_write(file/"b", "")


@pytest.mark.parametrize("bad", [b"", b"{", b"[" * 200_000, b"\xff", "9"*5000], ids=range(5))
def test_what_is_no_json(bad): assert parse_json(bad) is None
