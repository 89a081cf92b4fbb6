"""Personal parts: what stays with a client, what an unseen one gets, golden numbers, resume, sums."""
import json
from pathlib import Path
import numpy as np
import pytest
import torch
from torch import nn
import fdgnb.methods.personal as personal
from conftest import bits, run, same_bits, says, sized
from fdgnb.core import generator, seeded
from fdgnb.federation.loop import Client, Method, Server, client_update, downloads, federated_round, weigh
from fdgnb.federation.shared import list_affine, squared_distance
from fdgnb.federation.toys import same
from fdgnb.methods.personal import DSBN, Ditto, FedBN, LGFedAvg, Local, PartialFed
from fdgnb.methods.personal import entries_of, first_moments, group_by_layer, learn_gates, mix_layers, nearest_branch
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings
from fdgnb.vectors import tagged

ALL = [("local", {}), ("lgfedavg", {}), ("lgfedavg", dict(unseen="initial")), ("fedbn", {}),
       ("fedbn", dict(unseen="initial")), ("dsbn", {}), ("dsbn", dict(answer="nearest")), ("ditto", {}),
       ("partialfed", {}), ("partialfed", dict(strategy="adaptive"))]
GOLDEN = Path(__file__).parent.parent/"golden"
each = pytest.mark.parametrize("name, h", ALL)


def golden(key): return json.loads((GOLDEN/f"{key}.json").read_text())


@pytest.fixture(scope="module")
def plain(tiny): return run("fedavg", tiny)


@pytest.fixture(scope="module")
def initial(tiny): return Federation("fedavg", tiny, "blended", 2, lr=.05, batch_size=16)


@pytest.mark.parametrize("name, h", [(n, h) for n, h in ALL if h])
def test_same_bits(monkeypatch, tiny, tmp_path, name, h): same_bits(monkeypatch, tmp_path, name, tiny, **h)


@each
def test_with_ga_and_with_clients_that_stay_away(tiny, name, h):
    "A sum with GA runs and differs from GA; who misses a round keeps what is its own."
    kw = dict(rounds=3, drops=((2, "inked"),))
    both = run(f"{name}+ga", tiny, **kw, **h)
    assert bits(both) != bits(run("ga", tiny, **kw))
    assert all(v.isfinite().all() for v in both.fed.server.model.values())


# ---- what an unseen client gets

def unseen(name, data, **h): return run(name, data, **h).model_of().state_dict()


@pytest.mark.parametrize("name, what", [("fedbn", "bn"), ("lgfedavg", "features")])
def test_unseen_initial_leaves_own_entries_as_they_began_and_sends_nothing_of_them(tiny, initial, name, what):
    held = unseen(name, tiny, unseen="initial")
    own = entries_of(initial.net, what)
    moved = {k for k in held if not torch.equal(held[k], initial.server.model[k])}
    assert moved == held.keys() - set(own)
    up = lambda **h: run(name, tiny, **h).ledger.query("direction == 'up' and kind == 'model'").bytes.sum()
    spared = sum(initial.server.model[k].nbytes for k in own)
    assert up() - up(unseen="initial") == spared*2*3                      # two rounds, three clients


def test_lgfedavg_sends_down_the_head_after_the_first_round(tiny, initial):
    book = run("lgfedavg", tiny).ledger.query("kind == 'model' and direction == 'down'")
    head = sum(initial.server.model[k].nbytes for k in entries_of(initial.net, "head"))
    whole = sum(v.nbytes for v in initial.server.model.values())
    assert {*zip(book["round"], book.bytes)} == {(1, whole), (2, head)}


# ---- two clients whose inputs differ in scale and shift

def points(scale, shift, seed=0):
    "Samples x = scale z + shift of standard normal z, labeled by the sign of z."
    z = torch.randn(64, 1, generator=generator(seed))
    return scale*z + shift, (z[:, 0] > 0).long()


def two_clients(**kw):
    how = Settings(**dict(lr=.5, batch_size=16) | kw)
    return [Client(k, dict(train=points(*at)), how, rounds=9) for k, at in dict(a=(1., 0.), b=(10., 100.)).items()]


def play(method, rounds=4, clients=None):
    "(server, clients) after some rounds."
    clients, net = clients or two_clients(), Toy()
    theta = {k: v.clone() for k, v in net.state_dict().items()}
    server = Server(theta, [c.id for c in clients], clients[0].settings, rounds=rounds, net=Toy())
    method.setup(server)
    down = downloads(method, server)
    for r in range(rounds): down = federated_round(method, server, clients, net, down, r)
    return server, clients


def held(method, server, client):
    "The state that a client would hold now."
    net, client.scratch = Toy(), {}
    method.receive(net, client, method.download(server, client.id))
    return net.state_dict()


def test_an_unseen_client_gets_the_mean_batchnorm_or_the_initial_one_and_the_others_keep_their_own():
    mean, initial = (play(FedBN(unseen=u)) for u in ("mean", "initial"))
    new = Client("new", {})
    for k in entries_of(Toy(), "bn"):
        a, b = (c.state[f"fedbn.{k}"] for c in mean[1])
        assert torch.allclose(held(FedBN(), mean[0], new)[k].double(), (a.double() + b.double())/2, atol=1e-4), k
        assert torch.equal(held(FedBN(), initial[0], new)[k], Toy().state_dict()[k]), k
    for c, d in zip(mean[1], initial[1]): assert same(held(FedBN(), mean[0], c), held(FedBN(), initial[0], d))


def test_local_leaves_an_unseen_client_the_initial_model():
    assert same(held(Local(), play(Local(), 2)[0], Client("new", {})), Toy().state_dict())


def test_partialfed_that_keeps_nothing_is_fedavg_and_that_keeps_batchnorm_is_fedbn():
    assert same(play(PartialFed(keep="nothing"))[0].model, play(Method())[0].model)
    ours, theirs = play(PartialFed(keep="bn")), play(FedBN())
    assert same(ours[0].model, theirs[0].model)
    for c, d in zip(ours[1], theirs[1]):
        assert same(held(PartialFed(keep="bn"), ours[0], c), held(FedBN(), theirs[0], d))


def chosen(theta, own, logits):
    "Layer by layer the one or the other."
    loaded = dict(zip(group_by_layer(theta), (logits > 0).tolist()))
    return {k: v if loaded[k.rpartition(".")[0]] else own[k] for k, v in theta.items()}


def test_partialfed_begins_from_the_choice_that_it_has_just_learned_in_evaluation_mode():
    net, logits, modes, b = Toy(), torch.tensor([.3, -.1, .2, -.2]), [], two_clients()[1]
    class Watched(PartialFed):
        def criterion(self, *a):
            modes.append(net.training)
            return super().criterion(*a)
    theta = Toy().state_dict()
    own = {k: v + 1 for k, v in theta.items()}
    b.state = tagged("partialfed", own) | {"partialfedgates": logits}
    method = Watched(strategy="adaptive", gate_lr=100.)
    method.receive(net, b, tagged("model", theta))
    assert same(net.state_dict(), chosen(theta, own, logits))
    method.begin(net, b, {})
    after = b.state["partialfedgates"]
    assert same(net.state_dict(), chosen(theta, own, after)) and ((after > 0) != (logits > 0)).any()
    assert modes == [False]*4


@pytest.mark.parametrize("seed", range(3))
def test_partialfed_learns_to_keep_the_first_batchnorm_first_where_the_samples_lie_far_off(seed):
    both = two_clients(lr=.1)
    for c in both: c.seed = seed
    play(PartialFed(strategy="adaptive"), 8, both)
    far = dict(zip(group_by_layer(Toy().state_dict()), both[1].state["partialfedgates"].tolist()))
    assert far["features.0"] == min(far.values()) < 0


# ---- neutral settings, to the bit

def test_local_with_one_client_is_fedavg(tiny):
    one = sized(tiny, optical=60, blended=40)
    assert same(run("local", one).model_of("optical").state_dict(), run("fedavg", one).fed.server.model)


@pytest.mark.parametrize("kw", [dict(clip=.5), dict(momentum=.9, keep_optimizer=True)])
def test_ditto_without_pull_is_fedavg_and_local_side_by_side(tiny, kw):
    ditto, alone = run("ditto", tiny, lam=0., **kw), run("local", tiny, **kw)
    assert same(ditto.fed.server.model, run("fedavg", tiny, **kw).fed.server.model)
    if "momentum" in kw: return                       # v's optimizer is new in each round, local's is kept
    for k in ("optical", "inked"): assert same(ditto.model_of(k).state_dict(), alone.model_of(k).state_dict())


# ---- formulas

class Toy(nn.Module):
    "BatchNorm layers whose names do not say so."
    def __init__(self):
        super().__init__()
        with seeded(0):
            self.features = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 3), nn.BatchNorm1d(3))
            self.head = nn.Linear(3, 2)
        g = torch.Generator().manual_seed(4)
        for p in self.parameters(): p.data = torch.rand(p.shape, generator=g)

    def forward(self, x): return self.head(self.features(x))


def test_batchnorm_is_found_by_its_type():
    own = set(entries_of(Toy(), "bn"))
    assert {k.rpartition(".")[0] for k in own} == {"features.0", "features.2"} and len(own) == 10
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    assert {k.rpartition(".")[2] for k in own} == {"weight", "bias"} | statistics
    assert entries_of(Toy(), "nothing") == [] and set(entries_of(Toy(), "features+head")) == set(Toy().state_dict())


class Quadratic:
    "A sample is (c, h); the loss h (theta - c)^2 / 2."
    def loss(self, model, x, y, client): return (x[:, 1]*(model.theta - x[:, 0])**2).mean()/2


class ScalarDitto(Quadratic, Ditto): "Ditto on a number."


ZERO, C, H, ETA, LAM = {"model.theta": torch.tensor(0.).double()}, 2., 3., .1, .5


def on_a_number(cls, rounds, **kw):
    "A client with the loss H (theta - C)^2 / 2 after some rounds from 0."
    net = nn.Module()
    net.theta = nn.Parameter(torch.tensor(0., dtype=torch.float64))
    data = dict(train=(torch.tensor([[C, H]]).double(), torch.zeros(1, dtype=torch.long)))
    client = Client("a", data, Settings(lr=ETA, **kw))
    for r in range(rounds): client_update(cls(lam=LAM), net, client, ZERO, r)
    return client


def test_dittos_personal_optimizer_begins_anew_in_each_round():
    client = on_a_number(ScalarDitto, 2, momentum=.9, keep_optimizer=True)
    assert abs(client.state["ditto.theta"].item() - ETA*H*C*(2 - ETA*H - ETA*LAM)) < 1e-12


def test_dittos_personal_gradient_is_clipped():
    client = on_a_number(ScalarDitto, 1, local_epochs=2, clip=.5)
    assert abs(client.state["ditto.theta"].item() - 2*ETA*.5) < 1e-6


def test_a_method_below_ditto_finds_the_global_model_and_its_scores_are_not_kept():
    found = []
    class Noted(Method):
        def begin(self, model, client, download): found.append(model.theta.item())
        def end(self, model, client): client.scratch["scores"] = {}
    class Above(Quadratic, Ditto, Noted): "Ditto, on a number, with a method beneath."
    client = on_a_number(Above, 2)
    assert found == [0., 0.] and client.state["ditto.theta"] > 0 and "scores" not in client.scratch


def test_the_squared_distance_is_a_sum_over_all_entries():
    net = Toy()
    w = {k: v + 2 for k, v in net.state_dict().items()}
    assert abs(squared_distance(net, w).item() - 4*sum(p.numel() for p in net.parameters())) < 1e-3


def test_ditto_refuses_to_exchange_features_upwards(tiny):
    says(lambda: run("ditto+mkmmd", tiny, exchange="up"), "ditto: exchange='up'")


def test_a_network_without_batchnorm_is_refused(tiny):
    says(lambda: run("fedbn", tiny, backbone="cnn4"), "cnn4 has no BatchNorm")


def test_local_sends_a_model_down_once(tiny):
    book = run("local", tiny).ledger.query("kind == 'model'")
    assert {*zip(book["round"], book.direction)} == {(1, "down")}


def test_defaults(): assert (Ditto().h.lam, PartialFed().h.strategy, PartialFed().h.keep) == (1., "fixed", "bn+head")


def resting_point(lam, c=2., h=3., w=-1.):
    "Where Ditto's personal number comes to rest while the global one is held at w."
    net = nn.Module()
    net.theta = nn.Parameter(torch.tensor(0., dtype=torch.float64))
    data = dict(train=(torch.tensor([[c, h]]).double(), torch.zeros(1, dtype=torch.long)))
    client = Client("a", data, Settings(lr=.1, local_epochs=2))
    for r in range(80):
        client_update(ScalarDitto(lam=lam), net, client, {"model.theta": torch.tensor(w).double()}, r)
    return client.state["ditto.theta"].item()


def at_rest(lam): return abs(resting_point(lam) - (3*2 + lam*-1)/(3 + lam)) < 1e-9


def test_ditto_rests_between_the_optimum_and_the_global_model(): assert at_rest(.5) and at_rest(2.)


def test_gates_load_what_helps():
    loss = lambda s, batch: (1 - s[0])**2 + s[1]**2
    descend = lambda f: learn_gates(torch.zeros(2), f, range(60), torch.Generator().manual_seed(1), 1., .5)
    a, turned = descend(loss), descend(lambda s, batch: -loss(s, batch))
    assert a[0] > 0 > a[1] and turned[0] < 0 < turned[1]                  # mutation: the sign


def test_layers_are_mixed_from_the_right_side():
    theta, own = ({k: torch.full((2,), v) for k in ("p.x", "q.x")} for v in (1., 3.))
    mixed = lambda a, b: [v[0].item() for v in mix_layers(a, b, torch.tensor([1., .25])).values()]
    assert mixed(theta, own) == [1., 2.5] and mixed(own, theta) != [1., 2.5]
    odd = {k: torch.rand(2, generator=generator(6)) for k in own}
    assert same(mix_layers(theta, odd, [1., 1.]), theta) and same(mix_layers(theta, odd, [0., 0.]), odd)
    assert group_by_layer(["b.x.w", "a.w", "b.x.c"]) == {"a": ["a.w"], "b.x": ["b.x.c", "b.x.w"]}


def test_whole_numbers_are_those_of_the_larger_share():
    three, five = ({"p.n": torch.tensor(n)} for n in (3, 5))
    assert [mix_layers(three, five, [w])["p.n"].item() for w in (1., .6, .4, 0.)] == [3, 3, 5, 5]


def test_nearest_is_by_standard_deviations_not_variances():
    number = lambda v: torch.tensor([v])
    branches = [{"n.running_mean": number(m), "n.running_var": number(s)} for m, s in ((0., 1.), (5., 25.))]
    near = lambda m, s: branches.index(nearest_branch(branches, "n", number(m), number(s)))
    assert (near(.5, 1.5), near(4., 16.), near(2.2, 1.), near(2.2, 25.)) == (0, 1, 0, 1)
    assert near(4., 9.) == 1                                  # 20 against 5; with variances 80 against 257


def test_a_branch_is_a_copy():
    sent = {"0.n.weight": torch.ones(2)}
    branch, = personal.split_by_branch(sent)
    sent["0.n.weight"].zero_()
    assert same(branch, {"n.weight": torch.ones(2)})


@pytest.mark.parametrize("size", [256, 16])
def test_first_moments_are_those_of_the_first_layers_input(size):
    x, net = points(10., 100.)[0], Toy()
    name, m, s = first_moments(net, x, "none", size)
    assert name == "features.0" and same(net.state_dict(), Toy().state_dict())
    assert np.allclose((m.item(), s.item()), (x.numpy().mean(), x.numpy().var()), rtol=1e-4)


def test_first_moments_of_images_are_of_scaled_ones():
    x = (torch.rand(8, 3, 4, 4, generator=generator(6))*255).byte()
    _, m, s = first_moments(nn.Sequential(nn.BatchNorm2d(3)), x, "half", 3)
    x = x.numpy()/127.5 - 1
    assert np.allclose(m, x.mean((0, 2, 3)), atol=1e-5) and np.allclose(s, x.var((0, 2, 3)), atol=1e-5)


def test_the_ensemble_is_the_mean_of_probabilities_and_stays_finite():
    two = torch.tensor([[0., 1., -200.]]), torch.tensor([[2., 0., -200.]])
    p = [np.exp(v[0].double().numpy()) for v in two]
    answer = personal.ensemble(two)
    assert np.allclose(answer.exp()[0, :2], sum(v/v.sum() for v in p)[:2]/2, atol=1e-6) and answer.isfinite().all()


def test_scale_and_shift_of_branches_are_listed_after_the_networks():
    net, asking = Toy(), Client("a", {})
    by_hand = [p for m in net.modules() if isinstance(m, nn.BatchNorm1d) for p in m.parameters()]
    assert [*map(id, list_affine(net, asking))] == [*map(id, by_hand)]
    lent = {k: Toy().state_dict()[k] for k in entries_of(net, "bn")}
    asking.scratch["dsbn"] = [lent]
    by_hand += [lent[f"features.{i}.{k}"] for i in (0, 2) for k in ("weight", "bias")]
    assert [*map(id, list_affine(net, asking))] == [*map(id, by_hand)]


def test_nearest_branch_is_the_clients_own(tiny):
    r = run("dsbn", tiny, local_epochs=12, lr=1e-3)           # the running statistics need some steps
    held = r.fed.method.download(r.fed.server, "new")
    branches = personal.split_by_branch({k[len("stats.dsbn."):]: v for k, v in held.items() if "dsbn" in k})
    assert len(branches) == 3
    net = r.model_of()
    for i, c in enumerate(r.fed.clients):
        found = first_moments(net, c.splits["train"].samples(), "none")
        assert nearest_branch(branches, *found) is branches[i]


# ---- golden numbers of other implementations (tests/golden/personal.py made them)

def tensors(state): return {k: torch.tensor(v, dtype=torch.float64) for k, v in state.items()}


def test_golden_fedbn():
    "The official averaging of two networks: shared entries alike, BatchNorm each its own."
    g = golden("fedbn")
    states, weights = [tensors(s) for s in g["models"]], g["weights"]

    class Given(FedBN):
        def weight(self, server, k, upload): return weights["ab".index(k)]
    method, clients = Given(unseen="initial"), [Client(k, {}) for k in "ab"]
    net, uploads = Toy().double(), []
    server = Server(tensors(g["server"]), "ab", net=Toy())
    for c, state in zip(clients, states):
        net.load_state_dict(state)
        c.scratch["loss"] = 0.
        method.end(net, c)
        uploads.append((c.id, {k: v.clone() for k, v in method.upload(net, c).items()}))
    method.aggregate(server, weigh(method, server, uploads))
    assert server.model.keys() == g["new_server"].keys()
    for k, v in tensors(g["new_server"]).items(): assert torch.allclose(server.model[k].double(), v), k
    for c, want in zip(clients, g["new_models"]):
        method.receive(net, c, method.download(server, c.id))
        for k, v in tensors(want).items(): assert torch.allclose(net.state_dict()[k].double(), v), (c.id, k)


def test_golden_ditto():
    "PFLlib's optimizer of the personal model, its anchor held at the received model."
    g = golden("ditto")
    with seeded(0): net = nn.Linear(3, 2).double()
    start, pulled_to = tensors(g["start"]), tensors(g["anchor"])
    x, y = torch.tensor(g["x"], dtype=torch.float64), torch.tensor(g["y"])

    class WholeBatch(Ditto):
        def sample(self, client, rng): return [torch.arange(len(y))]*g["steps"]
        def batch(self, x_, y_, client, rng): return x, y
    client = Client("a", dict(train=(x.float(), y)), Settings(lr=g["lr"]))
    client.state |= {f"ditto.{k}": v for k, v in start.items()}
    down = {f"model.{k}": v for k, v in pulled_to.items()}
    client_update(WholeBatch(lam=g["mu"]), net, client, down, 0)
    for k, v in tensors(g["end"]).items(): assert torch.allclose(client.state[f"ditto.{k}"], v, atol=1e-12), k


def test_golden_lgfedavg():
    "FLGo's client: what it makes of a new global model."
    g = golden("lgfedavg")
    client, net = Client("a", {}), Toy().double()
    net.load_state_dict(tensors(g["own"]))
    client.state |= {f"lgfedavg.{k}": net.state_dict()[k].clone() for k in entries_of(net, "features")}
    LGFedAvg().receive(net, client, {f"model.{k}": v for k, v in tensors(g["sent"]).items()})
    for k, v in tensors(g["held"]).items(): assert torch.equal(net.state_dict()[k].double(), v), k


def test_golden_dsbn():
    "The official layer with two branches: what the client of each domain and an unseen one compute."
    g = golden("dsbn")
    class Layer(nn.Module):
        "One BatchNorm and nothing else."
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(2).double()
        def forward(self, x): return self.bn(x).flatten(1)
    net = Layer().eval()
    server = Server(net.state_dict(), "ab", net=Layer())
    for i, branch in enumerate(g["branches"]):
        server.state |= {f"dsbn.{i}.bn.{k}": v for k, v in tensors(branch).items()}
    x, outs = (torch.tensor(g[k], dtype=torch.float64) for k in ("x", "out"))
    outs = outs.flatten(2)
    method = DSBN()
    for k, out in zip("ab", outs):
        method.receive(net, Client(k, {}), method.download(server, k))
        assert torch.allclose(net(x), out)
    unseen = Client("new", {})
    method.receive(net, unseen, method.download(server, "new"))
    assert torch.allclose(method.predict(net, x, unseen).exp(), outs.softmax(2).mean(0))
