"""Mixing: beside the authors' functions, in sums, resumed."""
import json
from pathlib import Path
import pytest
import torch
import torch.nn.functional as F
import fdgnb
from fdgnb.core import FdgnbError
from fdgnb.methods import mixing
from conftest import one_line, run, same_bits
from golden.mixing import LABELS, SOFT, inputs

GOLDEN = json.loads((Path(__file__).parent/"golden"/"mixing.json").read_text())["found"]
NAMES = ("mixup", "fedmix", "am", "vhl")
V = inputs()


def check_amplitudes(f):
    for i, lam in enumerate((.25, .5, .9)):        # there lam is the image's own
        there = torch.tensor(GOLDEN["am"][i], dtype=torch.float64)
        torch.testing.assert_close(f(V["x"][i], V["other"][i], 1 - lam), there, rtol=0, atol=1e-12)


def check_first_order(f):
    "Of one sample the released loss and ours are the same; of four, its third term is a quarter of ours."
    for there in GOLDEN["fedmix"]:
        a = V["a"].clone().requires_grad_()
        net = lambda x: (x @ a.T).tanh() @ V["b"].T
        n, ym = there["n"], torch.tensor(SOFT, dtype=torch.float64)
        x, y, xm = V["rows"][:n], torch.tensor(LABELS["rows"][:n]), V["means"][:n]
        loss = f(net, x, y, xm/n, ym[:n], .1)
        loss.backward()
        assert loss.item() == pytest.approx(there["loss"], abs=1e-12)
        slope = torch.tensor(there["gradient"], dtype=torch.float64)
        torch.testing.assert_close(a.grad, slope, rtol=0, atol=1e-12)


def check_contrast(f):
    assert f(V["z"], torch.tensor(LABELS["z"]), .07).item() == pytest.approx(GOLDEN["vhl"], abs=1e-10)


def check_means(f):
    x, y = f(torch.arange(7.).reshape(7, 1), torch.eye(7), 3)
    assert x.flatten().tolist() == [1., 4.5] and torch.allclose(y.sum(1), torch.ones(2))


def check_mixed(f):
    y, z = torch.tensor([0, 2]), torch.tensor([[1., 2, 3], [0., 1, -1]])
    soft = f(F.one_hot(y, 3).float(), F.one_hot(y.flip(0), 3).float(), .25)
    by_hand = .75*F.cross_entropy(z, y) + .25*F.cross_entropy(z, y.flip(0))
    assert F.cross_entropy(z, soft).item() == pytest.approx(by_hand.item(), abs=1e-6)


CHECKS = {"amplitude_mix": check_amplitudes, "fedmix_loss": check_first_order, "means_of": check_means,
          "supervised_contrast": check_contrast, "mix": check_mixed}


@pytest.mark.parametrize("name", CHECKS)
def test_formula(name): CHECKS[name](getattr(mixing, name))


def test_same_bits(monkeypatch, tiny, tmp_path): same_bits(monkeypatch, tmp_path, "fedbr+mixup", tiny)


def test_a_client_that_comes_late_is_sent_the_means(tiny):
    "One client of three per round: each is sent the means the first time it takes part, and only then."
    book = run("fedmix", tiny, rounds=6, per_round=1, M=5).ledger
    down = book[(book.kind == "images") & (book.direction == "down")]
    met = book[(book.kind == "model") & (book.direction == "up")].groupby("client")["round"].min()
    assert down.groupby("client")["round"].apply(list).to_dict() == {k: [r] for k, r in met.items()}


def test_spectra_of_vectors_are_refused():
    x, y = torch.arange(240.).reshape(40, 6)/240, torch.arange(40) % 2
    data = fdgnb.from_arrays(dict(a=(x, y), b=(x + 1, y)))
    with pytest.raises(FdgnbError, match="am mixes spectra of images") as e:
        fdgnb.fit("am", data, "b", 1, backbone="mlp2", progress=False)
    assert one_line(e)
