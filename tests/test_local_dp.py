"Noise that a site adds to the models it sends, over a grid in memory."
from importlib.util import find_spec
import pytest
from fdgnb import FdgnbError

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from hospitals import deploy, nodes_of, write_hospitals

NAMES = ["blended", "inked", "optical"]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    return write_hospitals(tmp_path_factory.mktemp("data"), 12, NAMES)


def noisy_run(hospitals, home, method, noise="0.01,1,1e-5"):
    "A run of a round in which every site adds noise."
    nodes = nodes_of(hospitals, home, NAMES)
    for _, config in nodes.values(): config["local-dp"] = noise
    plan = dict(method=method, dataset="hospitals", rounds=1, hyper=dict(size=16, lr=.05, batch_size=8))
    return deploy(hospitals, home, plan, nodes=nodes, sites=NAMES)[0]


def test_models_come_with_noise_drawn_anew(hospitals, tmp_path):
    first, second = (noisy_run(hospitals, tmp_path/k, "fedavg").fed.server.model for k in "ab")
    apart = [(first[k] - second[k]).std().item() for k in first if first[k].numel() > 100]
    assert all(.01 < a < 1 for a in apart)                        # sigma is .097 a site; the mean of two of them


@pytest.mark.parametrize("method, noise, why", [("scaffold", "0.01,1,1e-5", "sends more than a model and scalars"),
                                                ("fedavg", "1,2,1e-5", "wanted CLIP,EPSILON,DELTA")])
def test_what_cannot_take_noise_is_refused(hospitals, tmp_path, method, noise, why):
    with pytest.raises(FdgnbError, match=why): noisy_run(hospitals, tmp_path, method, noise)
