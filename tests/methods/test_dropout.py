"""FedDrop: the subnet cut out and trained alone, rates, resume, sums."""
import pytest
import torch
from torch import nn
from conftest import bits, one_line, run, same_bits
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.federation.loop import Client, Server, client_update
from fdgnb.federation.toys import same
from fdgnb.methods.dropout import FedDrop, drop, hidden_units
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings


class Dense(nn.Module):
    "Four inputs, ten hidden units, three classes."
    def __init__(self, n=10, scale=1.):
        super().__init__()
        self.scale, self.fc1, self.bn, self.fc2 = scale, nn.Linear(4, n), nn.BatchNorm1d(n), nn.Linear(n, 3)

    def forward(self, x): return self.fc2(self.bn(self.fc1(x.float())).relu()*self.scale)


def is_the_subnet(p=.4, decay=.01):
    "Whether FedDrop's client ends where a network of the kept units alone does, and the rest has not moved."
    with seeded(0): net = Dense()
    first = {k: v.clone() for k, v in net.state_dict().items()}
    x, y = torch.randn(24, 4, generator=generator(1)), torch.arange(24) % 3
    settings = Settings(lr=.3, batch_size=8, local_epochs=2, weight_decay=decay)
    client = Client("a", dict(train=(x, y)), settings)
    method = FedDrop(rates=(p,))
    down = method.download(Server(first, ["a"], client.settings), "a")
    up = {k[6:]: v for k, v in client_update(method, net, client, down, 0).items() if k.startswith("model.")}
    keep = torch.rand(10, generator=client.rng("feddrop")) >= p
    cut = lambda k, v: v[:, keep] if k == "fc2.weight" else v[keep] if v.ndim and k != "fc2.bias" else v
    left = lambda k, v: v[:, ~keep] if k == "fc2.weight" else v[~keep]
    with seeded(0): sub = Dense(int(keep.sum()), 1/(1 - p))
    sub.load_state_dict({k: cut(k, v) for k, v in first.items()})
    opt, rng = torch.optim.SGD(sub.parameters(), lr=.3, weight_decay=decay), client.rng("sample")
    for _ in range(2):
        for idx in torch.randperm(24, generator=rng).split(8):
            opt.zero_grad()
            nn.functional.cross_entropy(sub(x[idx]), y[idx]).backward()
            opt.step()
    hidden = [k for k, v in first.items() if v.ndim and k != "fc2.bias"]
    trained = all(torch.allclose(cut(k, up[k]), v, atol=1e-5) for k, v in sub.state_dict().items())
    return trained and all(torch.equal(left(k, up[k]), left(k, first[k])) for k in hidden)


def test_a_client_trains_the_subnet_and_nothing_else(): assert is_the_subnet() and is_the_subnet(.7, 0.)


@pytest.fixture(scope="module")
def plain(tiny): return run("fedavg", tiny)


def test_rate_zero_is_fedavg(tiny, plain):
    assert same(run("feddrop", tiny, rates=(0.,)).fed.server.model, plain.fed.server.model)
    assert not same(run("feddrop", tiny).fed.server.model, plain.fed.server.model)


def test_unseen_client_gets_the_whole_network(tiny):
    r = run("feddrop", tiny)
    assert same(r.model_of().state_dict(), r.fed.server.model)


def test_each_client_has_its_own_rate_and_a_new_mask_in_each_round(tiny):
    fed = Federation("feddrop", tiny, "blended", 2, rates=(0., .5, .9), lr=.05, batch_size=16)
    first, shares, masks = fed.server.model["head.fc2.weight"], [], []
    for c in fed.clients:
        for r in range(2):
            up = client_update(fed.method, fed.net, c, fed.method.download(fed.server, c.id), r)
            masks.append((up["model.head.fc2.weight"] - first).norm(dim=0) > 0)
        shares.append((masks[-1] | masks[-2]).float().mean().item())
    assert shares[0] > .95 and .6 < shares[1] < .9 and shares[2] < .35
    assert not torch.equal(masks[2], masks[3]) and not torch.equal(masks[2], masks[4])
    assert not any(m._forward_pre_hooks for n, m in fed.net.named_modules() if n == "head.fc2")


def test_same_bits(monkeypatch, tiny, tmp_path):
    same_bits(monkeypatch, tmp_path, "feddrop", tiny, rates=(.2, .5, .7))


@pytest.mark.parametrize("name", ["feddrop+ga", "feddrop+fedbn", "feddrop+tent"])
def test_sums_run(tiny, name): assert bits(run(name, tiny)) != bits(run("fedavg", tiny))


BAD = [dict(rates=r) for r in ((1.,), (.1, .2), (-.1,), ("a",))] + [dict(backbone="cnn4")]


@pytest.mark.parametrize("kw", BAD)
def test_bad_rates_and_networks_are_refused_in_one_line(tiny, kw):
    with pytest.raises(FdgnbError) as e: Federation("feddrop", tiny, "blended", 1, **kw)
    assert one_line(e)


def test_hidden_units_of_a_plain_stack():
    with seeded(0):
        layers = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)
    net = nn.Sequential(*layers)
    assert hidden_units(net) == [(["0"], "2"), (["2", "3"], "4")]


def test_hidden_units_of_features_and_head_alone_where_one_layer_reads_the_other():
    with seeded(0):
        beside, unread = nn.Module(), nn.Sequential(nn.Linear(4, 6), nn.Linear(5, 3))
        beside.features, beside.head, beside.critic = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(3, 2)
    assert hidden_units(beside) == [(["features"], "head")] and hidden_units(unread) == []


class Deep(nn.Module):
    "Four inputs, two hidden layers of ten units, three classes."
    def __init__(self):
        super().__init__()
        self.fc1, self.mid, self.fc2 = nn.Linear(4, 10), nn.Linear(10, 10), nn.Linear(10, 3)
    def forward(self, x): return self.fc2(self.mid(self.fc1(x.float()).relu()).relu())


def test_two_layers_have_masks_of_their_own_and_dropped_units_stay():
    with seeded(0): net = Deep()
    first = {k: v.clone() for k, v in net.state_dict().items()}
    settings = Settings(lr=.3, batch_size=8, weight_decay=.01)
    data = dict(train=(torch.randn(24, 4, generator=generator(1)), torch.arange(24) % 3))
    method, server = FedDrop(rates=(.4, 0.)), Server(dict(first), ["a", "b"], settings)
    def sent(k, round):
        net.load_state_dict(first)
        client = Client(k, data, settings)
        return client_update(method, net, client, method.download(server, k), round), client
    up, client = sent("a", 0)
    rng = client.rng("feddrop")
    keep, deep = (torch.rand(10, generator=rng) >= .4 for _ in range(2))
    assert 3 < keep.sum() < 10 and 3 < deep.sum() < 10 and not torch.equal(keep, deep)
    same_at = lambda k, *at: torch.equal(up[f"model.{k}"][at], first[k][at])
    every = slice(None)
    assert same_at("fc1.weight", ~keep) and same_at("mid.weight", ~deep)
    assert same_at("mid.weight", every, ~keep) and same_at("fc2.weight", every, ~deep)
    held = lambda up: (up["model.fc2.weight"] != first["fc2.weight"]).any(0)
    assert torch.equal(held(up), deep) and not torch.equal(held(sent("a", 1)[0]), deep)
    assert held(sent("b", 0)[0]).all() and not net.fc2._forward_pre_hooks


def test_the_masked_activation_has_the_right_mean():
    "Over 2000 masks, what an identity layer reads of ones has the mean one; the drawn units are 0."
    with seeded(0): layer = nn.Sequential(nn.Identity(), nn.Linear(10, 10, bias=False))
    layer[1].weight, rng, read = nn.Parameter(torch.eye(10)), generator(9), []
    for _ in range(2000):
        handle, dropped = drop(layer, None, "1", .4, rng)
        with torch.no_grad(): read.append(layer(torch.ones(1, 10))[0])
        handle.remove()
        assert torch.equal(read[-1] == 0, dropped)
    assert (torch.stack(read).mean(0) - 1).abs().max() < .1
