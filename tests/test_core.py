"What core's page does not show: errors of odd values, registries that fail, draws beside other threads, bad paths."
import os, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pytest
import torch
from torch.distributions import Uniform
from fdgnb.core import (FdgnbError, Registry, atomic_write, drawing_from, echo, generator, nearest, parse_json,
                        path_of, read_regular, seeded, writing)


def test_the_nearest_of_none_few_and_many():
    many = [f"model{i}" for i in range(9)]
    assert nearest("zzz", ["fedavg"]) == "; known: fedavg"
    assert nearest("fedavg", []) == "; known: none"
    assert nearest("modell5", many) == "; did you mean 'model5'? nearest of 9: model5, model8, model7"
    assert nearest("zzz", many) == "; none of 9 names is near it"
    assert nearest(["model5"], many) == "; did you mean 'model5'? nearest of 9: model5, model8, model7"


def test_an_error_is_one_line_of_limited_length():
    assert echo("a\nb") == repr("a\nb")
    assert [len(echo(v)) for v in ("x"*10_000, torch.zeros(99, 99), 10**5000)] == [200, 200, 5]
    assert str(FdgnbError("two\nlines")) == "two lines"
    assert len(str(FdgnbError("x"*9999))) == 985


def test_a_package_that_cannot_be_imported_says_so_at_every_look_up():
    broken = Registry("toy", "fdgnb.no_such_package")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="fdgnb.no_such_package"): broken.get("ball")


def test_a_name_that_cannot_be_hashed_is_unknown():
    with pytest.raises(FdgnbError, match=r"unknown toy \['ball'\]"): Registry("toy").get(["ball"])


def weight():
    with seeded(0): return torch.nn.Linear(2, 2).weight.detach()


def draw_stream(busy, out):
    "Draw from the global generator, at least ten times and until nobody is busy."
    while len(out) < 10 or busy.is_set(): out.append(torch.rand(50).sum().item())


def test_a_thread_of_the_global_generator_and_seeded_weights_leave_each_other_alone():
    w, beside, busy = weight(), [], threading.Event()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        busy.set()
        thread = threading.Thread(target=draw_stream, args=(busy, beside))
        thread.start()
        assert all(torch.equal(weight(), w) for _ in range(20))
        busy.clear()
        thread.join()
        torch.manual_seed(1)
        assert beside == [torch.rand(50).sum().item() for _ in beside]


def draw_three_ways(_=None):
    with drawing_from(generator(0, 7)):
        return Uniform(0., 1.).rsample((3,)), torch.randperm(9), torch.empty(2).normal_()


def test_draws_in_threads_are_those_of_the_generator():
    before, g = torch.get_rng_state(), generator(0, 7)
    wanted = torch.rand(3, generator=g), torch.randperm(9, generator=g), torch.empty(2).normal_(generator=g)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(draw_three_ways, range(40)): assert all(map(torch.equal, got, wanted))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_a_draw_names_stays():
    with drawing_from(generator(1)): got = torch.rand(3, generator=generator(0, 7))
    assert torch.equal(got, torch.rand(3, generator=generator(0, 7)))


def test_an_initialization_that_a_library_wrapped_draws_from_the_generator(monkeypatch):
    "As transformers wraps those of nn.init while it makes a network."
    plain, before = torch.nn.init.normal_, torch.get_rng_state()
    wanted = plain(torch.empty(3), generator=generator(0, 7))
    def normal_(tensor, mean=0., std=1., generator=None): return plain(tensor, mean, std, generator)
    monkeypatch.setattr(torch.nn.init, "normal_", normal_)
    with drawing_from(generator(0, 7)): assert torch.equal(torch.nn.init.normal_(torch.empty(3)), wanted)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bad", [None, 3, b"x", "~nobodyhere/x", "a\0b"])
def test_what_is_no_path(bad):
    with pytest.raises(FdgnbError, match="wanted a path"): path_of(bad, "out")


def test_a_path_from_home(): assert path_of("~/x", "out") == Path.home()/"x"


def test_folders_and_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path/"pipe")
    for bad in (tmp_path, tmp_path/"pipe"):
        with pytest.raises(FdgnbError, match="it is no regular file"): read_regular(bad)


def test_a_file_below_a_file_cannot_be_written(tmp_path):
    file = atomic_write(tmp_path/"a", "")
    with pytest.raises(FdgnbError, match="cannot be written: File exists"), writing(file/"b"):
        atomic_write(file/"b", "")


@pytest.mark.parametrize("bad", [b"", b"{", b"[" * 200_000, b"\xff", "9"*5000], ids=range(5))
def test_what_is_no_json(bad): assert parse_json(bad) is None
