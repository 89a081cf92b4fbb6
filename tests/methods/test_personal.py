"""Personal parts: golden steps of released code; Ditto's personal steps by hand."""
import pytest
import torch
from torch import nn
from fdgnb.core import seeded
from fdgnb.federation.loop import Client, Server, client_update, weigh
from fdgnb.methods.personal import DSBN, Ditto, FedBN, LGFedAvg, entries_of
from fdgnb.settings import Settings
from golden.replay import exact, read


def tensors(state, of=""): return {of + k: exact(v) for k, v in state.items()}


def assert_near(found, wanted):
    for k, v in wanted.items(): torch.testing.assert_close(found[k].double(), v, rtol=0, atol=1e-7)


class Toy(nn.Module):
    "BatchNorm layers whose names do not say so."
    def __init__(self):
        super().__init__()
        with seeded(0):
            self.features = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 3), nn.BatchNorm1d(3))
            self.head = nn.Linear(3, 2)
        self.double()


def test_golden_fedbn():
    "The official averaging of two networks: shared entries alike, BatchNorm each its own."
    g, net, uploads = read("fedbn"), Toy(), []
    class Given(FedBN):
        def weight(self, server, k, upload): return g["weights"]["ab".index(k)]
    method, clients, server = Given(unseen="initial"), [Client(k, {}) for k in "ab"], Server(tensors(g["server"]), "ab",
                                                                                             net=Toy())
    for client, state in zip(clients, g["models"]):
        net.load_state_dict(tensors(state))
        client.scratch["loss"] = 0.
        method.end(net, client)
        uploads.append((client.id, {k: v.clone() for k, v in method.upload(net, client).items()}))
    method.aggregate(server, weigh(method, server, uploads))
    assert_near(server.model, tensors(g["new_server"]))
    for client, state in zip(clients, g["new_models"]):
        method.receive(net, client, method.download(server, client.id))
        assert_near(net.state_dict(), tensors(state))


def test_golden_ditto():
    "PFLlib's optimizer of the personal model, its anchor held at the received model."
    g = read("ditto")
    with seeded(0): net = nn.Linear(3, 2).double()
    x, y = exact(g["x"]), torch.tensor(g["y"])
    class WholeBatch(Ditto):
        def sample(self, client, rng): return [torch.arange(len(y))]*g["steps"]
        def batch(self, x_, y_, client, rng): return x, y
    client = Client("a", dict(train=(x.float(), y)), Settings(lr=g["lr"]))
    client.state |= tensors(g["start"], "ditto.")
    client_update(WholeBatch(lam=g["mu"]), net, client, tensors(g["anchor"], "model."), 0)
    assert_near(client.state, tensors(g["end"], "ditto."))


def test_golden_lgfedavg():
    "FLGo's client: what it makes of a new global model."
    g, client, net = read("lgfedavg"), Client("a", {}), Toy()
    client.state |= {f"lgfedavg.{k}": v for k, v in tensors(g["own"]).items() if k in entries_of(net, "features")}
    LGFedAvg().receive(net, client, tensors(g["sent"], "model."))
    assert_near(net.state_dict(), tensors(g["held"]))


def test_golden_dsbn():
    "The official layer with two branches: what the client of each domain and an unseen one compute."
    g = read("dsbn")
    net = nn.Sequential(nn.BatchNorm2d(2).double(), nn.Flatten()).eval()
    server, method = Server(net.state_dict(), "ab", net=net), DSBN()
    for i, branch in enumerate(g["branches"]): server.state |= tensors(branch, f"dsbn.{i}.0.")
    x, outs, unseen = exact(g["x"]), exact(g["out"]).flatten(2), Client("new", {})
    for k, out in zip("ab", outs):
        method.receive(net, Client(k, {}), method.download(server, k))
        torch.testing.assert_close(net(x), out)
    method.receive(net, unseen, method.download(server, "new"))
    torch.testing.assert_close(method.predict(net, x, unseen).exp(), outs.softmax(2).mean(0))


class Quadratic:
    "A sample is (c, h); the loss h (theta - c)^2 / 2."
    def loss(self, model, x, y, client): return (x[:, 1]*(model.theta - x[:, 0])**2).mean()/2


@pytest.mark.parametrize("rounds, settings, theta", [
    (1, dict(local_epochs=2), .1*3*2*(2 - .1*3 - .1*.5)),
    (2, dict(momentum=.9, keep_optimizer=True), .1*3*2*(2 - .1*3 - .1*.5)),             # begins anew in each round
    (1, dict(local_epochs=2, clip=.5), 2*.1*.5)])
def test_dittos_personal_steps_by_hand(rounds, settings, theta):
    "Two steps of rate .1 down 3 (theta - 2)^2 / 2 + .5 theta^2 / 2."
    class ScalarDitto(Quadratic, Ditto): "Ditto on a number."
    net = nn.Module()
    net.theta = nn.Parameter(exact(0.))
    client = Client("a", dict(train=(exact([[2., 3.]]), torch.zeros(1, dtype=torch.long))), Settings(lr=.1, **settings))
    for r in range(rounds): client_update(ScalarDitto(lam=.5), net, client, {"model.theta": exact(0.)}, r)
    assert client.state["ditto.theta"].item() == pytest.approx(theta, abs=1e-6)
