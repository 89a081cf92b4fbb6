"""Tent, BatchNorm re-estimation, DSBN unseen: golden numbers, a shifted domain, sums."""
import copy, json, math
from dataclasses import replace
from pathlib import Path
import pytest
import torch
from torch import nn
from conftest import bits, one_line, run, sized
from fdgnb.core import FdgnbError, generator, seeded
from fdgnb.data.domain import Domain
from fdgnb.federation.compose import method_class
from fdgnb.federation.loop import Client
from fdgnb.federation.toys import same
from fdgnb.federation.shared import prepare_input
from fdgnb.methods.personal import DSBN
from fdgnb.methods.testtime import BNStats, Tent, entropy, reestimate, use_batch_statistics
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings

GOLDEN = Path(__file__).parent.parent/"golden"


def golden(key): return json.loads((GOLDEN/f"{key}.json").read_text())


def network(state):
    "The network of tests/golden/testtime.py."
    with seeded(0):
        net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2),
                            nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)).double()
    net.load_state_dict({k: torch.tensor(v, dtype=net.state_dict()[k].dtype) for k, v in state.items()})
    return net.eval()


def follows_tent(method):
    "Whether three batches are answered, and the network left, as by the authors' code."
    g, who = golden("tent"), Client("t", {})
    net, answers = network(g["start"]), []
    method.adapt(net, None, who)
    with torch.no_grad():
        for x in g["batches"]: answers.append(method.predict(net, torch.tensor(x).double(), who))
    near = [torch.allclose(a, torch.tensor(b).double()) for a, b in zip(answers, g["answers"])]
    return all(near) and all(torch.allclose(net.state_dict()[k], torch.tensor(v).double())
                             for k, v in g["end"].items())


def test_golden_tent(): assert follows_tent(Tent(tent_lr=.01))


def test_golden_bnstats():
    "One batch: the authors' layers with momentum 1 keep its statistics, ours its average."
    g = golden("bnstats")
    net, x = network(g["start"]), torch.tensor(g["batches"][0], dtype=torch.float64)
    assert torch.allclose(use_batch_statistics(network(g["start"]))(x), torch.tensor(g["answers"]).double())
    net.float()
    reestimate(net, x.float())
    for k, v in g["end"].items():
        if "running" in k: assert torch.allclose(net.state_dict()[k], torch.tensor(v), atol=1e-5), k


@pytest.mark.parametrize("prior", [0., 5., 1e12])
def test_the_sources_statistics_weigh_so_many_samples(prior):
    g = golden("bnstats")
    x = torch.tensor(g["batches"][0])
    alone, mixed = network(g["start"]).float(), network(g["start"]).float()
    reestimate(alone, x)
    reestimate(mixed, x, prior)
    old = network(g["start"]).float().state_dict()
    for k in old:
        if "running" not in k: continue
        want = (prior*old[k] + 5*alone.state_dict()[k])/(prior + 5)
        assert torch.allclose(mixed.state_dict()[k], want, rtol=1e-4), k


def test_tent_leaves_all_but_scale_and_shift():
    g, who, method = golden("tent"), Client("t", {}), Tent(tent_lr=.1)
    net = network(g["start"])
    before = {k: v.clone() for k, v in net.state_dict().items()}
    method.adapt(net, None, who)
    method.predict(net, torch.tensor(g["batches"][0]).double(), who)
    moved = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k]) and "tracked" not in k}
    assert moved == {"1.weight", "1.bias", "4.weight", "4.bias"}


def small_network(*extra):
    "BatchNorm, linear, BatchNorm, linear; statistics of some source, and batches counted before."
    g = generator(1)
    with seeded(0): first, rest = [nn.BatchNorm1d(3), nn.Linear(3, 4)], [nn.BatchNorm1d(4), nn.Linear(4, 5)]
    with torch.no_grad():
        for v in nn.Sequential(*first, *rest).state_dict().values():
            v.copy_(torch.rand(v.shape, generator=g) + .5 if v.is_floating_point() else v + 7)
    return nn.Sequential(*first, *extra, *rest).eval()


def test_bnstats_leaves_weights_momentum_and_mode_and_dropout_stays_off():
    x, net, wet = 5 + 3*torch.randn(40, 3, generator=generator(2)), small_network(), small_network(nn.Dropout())
    weights = {k: v.detach().clone() for k, v in net.named_parameters()}
    for m in (net, wet): reestimate(m, x, prior=10., size=20)
    assert same(weights, {k: v.detach() for k, v in net.named_parameters()})
    assert (net[0].momentum, net[0].training) == (.1, False)
    assert all(torch.equal(a, b) for a, b in zip(wet.state_dict().values(), net.state_dict().values()))


def test_a_single_sample_changes_no_statistics():
    net, before = small_network(), small_network().state_dict()
    reestimate(net, torch.ones(1, 3))
    assert same(net.state_dict(), before)


def test_bnstats_scales_bytes_as_in_training():
    "Eight images beside statistics that count as four samples count two thirds."
    layer, x = nn.BatchNorm2d(3), torch.randint(256, (8, 3, 5, 5), generator=generator(8)).to(torch.uint8)
    old = torch.tensor([3., 4., 5.])
    with torch.no_grad(): layer.running_mean.copy_(old)
    BNStats(prior=4.).adapt(nn.Sequential(layer), x, Client("t", {}, Settings(normalize="half")))
    v = x/127.5 - 1
    assert torch.allclose(layer.running_mean, old/3 + 2/3*v.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(layer.running_var, 1/3 + 2/3*v.transpose(0, 1).flatten(1).var(1), atol=1e-5)


def test_tent_learns_nothing_from_a_sample_alone_and_answers_it_by_the_running_statistics():
    net, who, tent, x = small_network(), Client("t", {}), Tent(tent_lr=.01), torch.ones(1, 3)
    tent.adapt(net, x, who)
    assert torch.equal(tent.predict(net, x, who).detach(), small_network()(x).detach())
    assert same(net.state_dict(), small_network().state_dict())


def test_batch_statistics_leave_dropout_off():
    x = torch.randn(30, 3, generator=generator(4))
    layers = [nn.Sequential(nn.BatchNorm1d(3), *more) for more in ((), (nn.Dropout(),))]
    assert torch.equal(*(use_batch_statistics(m)(x).detach() for m in layers))


# ---- digits whose brightness and contrast are changed

@pytest.fixture(scope="module")
def shifted(small):
    from fdgnb import get_dataset
    inked = get_dataset("digits")["inked"]
    sources = sized(small, optical=60, inked=60).domains
    dark = Domain("shifted", (inked.x[60:140]*.4 + 90).round().to(torch.uint8), inked.y[60:140])
    return replace(small, domains=sources | dict(shifted=dark))


KW = dict(target="shifted", rounds=6, local_epochs=4)


@pytest.fixture(scope="module")
def trained(shifted): return run("fedavg", shifted, **KW)


def errors(how, r, passes=1):
    "(error, mean entropy) of the unseen client's samples."
    client, net = r.fed.target_client, copy.deepcopy(r.fed.net)
    client.scratch = {}
    how.receive(net, client, how.download(r.fed.server, client.id))
    split = client.splits["target"]
    how.adapt(net.eval(), split.samples(), client)
    with torch.no_grad():
        for _ in range(passes): logits = how.predict(net, prepare_input(split.samples(), "cpu"), client)
    y = client._scored["target"].y
    return (logits.argmax(1) != y).float().mean().item(), entropy(logits).mean().item()


def test_tent_lowers_entropy_and_error_on_shifted_digits(trained):
    tent = Tent(tent_lr=5e-3, tent_batch=20)
    (plain, _), (stats, _) = errors(type(trained.fed.method)(), trained), errors(BNStats(), trained)
    (first, high), (later, low) = errors(tent, trained), errors(tent, trained, passes=6)
    assert max(stats, first, later) < plain - .1 and low < high


def test_training_is_not_touched(shifted, tiny):
    for base in ("fedavg", "ga", "fedbn"):
        for top in ("tent", "bnstats"):
            name = top if base == "fedavg" else f"{base}+{top}"
            assert bits(run(name, tiny)) == bits(run(base, tiny))


def test_dsbn_trains_as_fedbn(tiny):
    trained = {name: run(name, tiny).fed.server.model for name in ("dsbn", "fedbn", "fedavg")}
    assert same(trained["dsbn"], trained["fedbn"]) and not same(trained["dsbn"], trained["fedavg"])


@pytest.mark.parametrize("name", ["tent", "bnstats", "dsbn", "fedbn+bnstats", "fdse+tent", "fdse+dsbn",
                                  "dsbn+tent", "tent+dsbn"])
def test_adapted_is_a_point_of_its_own_and_alike_on_any_workers(tiny, name):
    rows = [run(name, tiny, rounds=1, eval_every=1, workers=w).rows for w in (1, 3)]
    assert rows[0] == rows[1]
    points = [r[3] for r in rows[0] if r[1] == "blended"]
    assert "adapted" in points and "aggregated" in points


def test_unseen_client_holds_the_global_model_until_it_adapts(tiny):
    for name in ("tent", "bnstats"):
        r = run(name, tiny)
        assert same(r.model_of().state_dict(), r.fed.server.model)


def test_no_batchnorm_is_refused_in_one_line(tiny):
    with pytest.raises(FdgnbError) as e: Federation("tent", tiny, "blended", 1, backbone="cnn4")
    assert one_line(e)


# ---- Tent and DSBN together

def batches_of(name, r, **h):
    "A sum's answers to three batches of the unseen client of a run of dsbn; the network and branches after."
    how, who, net = method_class(name)(**h), r.fed.target_client, copy.deepcopy(r.fed.net)
    who.scratch = {}
    how.receive(net, who, how.download(r.fed.server, who.id))
    how.adapt(net.eval(), who.splits["target"].samples(), who)
    x = prepare_input(who.splits["target"].samples(), "cpu")
    with torch.no_grad(): answers = [how.predict(net, b, who) for b in x.split(14)]
    return answers, net, who.scratch["dsbn"]


@pytest.fixture(scope="module")
def branched(tiny): return run("dsbn", tiny)


def test_dsbn_below_tent_answers_before_the_step_that_moves_every_branch(branched):
    "With steps of no size the batches are answered by the branches as sent; with some, the first one is."
    still, _, sent = batches_of("dsbn+tent", branched, tent_lr=0.)
    moving, _, moved = batches_of("dsbn+tent", branched, tent_lr=.05)
    assert torch.equal(still[0], moving[0]) and not torch.equal(still[1], moving[1])
    scales = [k for k in sent[0] if k.endswith(("weight", "bias"))]
    for a, b in zip(sent, moved):
        assert {k for k in a if not torch.equal(a[k], b[k]) and "tracked" not in k} == set(scales)
    low, high = (sum(entropy(v).mean() for v in a) for a in (moving, still))
    assert low < high


def test_dsbn_above_tent_is_tent_on_every_branch_alone(branched):
    nets, r = [branched.model_of(c.id) for c in branched.fed.clients], branched
    x = prepare_input(r.fed.target_client.splits["target"].samples(), "cpu").split(14)
    alone = []
    for net in nets:
        tent, who = Tent(tent_lr=.05), Client("t", {})
        tent.adapt(net.eval(), None, who)
        with torch.no_grad(): alone.append([tent.predict(net, b, who).softmax(1) for b in x])
    both = batches_of("tent+dsbn", branched, tent_lr=.05)[0]
    for i, answer in enumerate(both):
        assert torch.allclose(answer.exp(), sum(a[i] for a in alone)/3, atol=1e-6)


def three_branches():
    "Three networks that differ in BatchNorm's scale and shift."
    nets, g = [small_network().double() for _ in range(3)], generator(6)
    with torch.no_grad():
        for n in nets:
            for p in (*n[0].parameters(), *n[2].parameters()): p.add_(torch.randn(p.shape, generator=g))
    return nets


def online(name, batches):
    "A sum's answers to batches, and the branches after them."
    nets, who = three_branches(), Client("t", {})
    own = lambda n: {k: v.clone() for k, v in n.state_dict().items() if k.startswith(("0.", "2."))}
    who.scratch["dsbn"] = [own(n) for n in nets]
    how = method_class(name)(tent_lr=.05)
    how.adapt(nets[0], None, who)
    with torch.no_grad(): return [how.predict(nets[0], x, who) for x in batches], who.scratch["dsbn"]


def mean_answer(nets, x): return sum(n.train()(x).detach().softmax(1) for n in nets)/len(nets)


def test_dsbn_below_tent_descends_the_entropy_of_the_mean_answer():
    "Adam's first step is the rate times the sign of the slope, here by central differences."
    x = torch.randn(20, 3, generator=generator(7), dtype=torch.float64)
    answers, after = online("dsbn+tent", [x])
    assert torch.allclose(answers[0].exp(), mean_answer(three_branches(), x), atol=1e-12)
    def mean_entropy(i, name, by):
        nets = three_branches()
        with torch.no_grad(): nets[i].get_parameter(name)[0] += by
        return entropy(mean_answer(nets, x).log()).mean().item()
    for i, name in ((0, "0.weight"), (1, "2.bias"), (2, "2.weight")):
        slope = mean_entropy(i, name, 1e-5) - mean_entropy(i, name, -1e-5)
        step = (after[i][name] - three_branches()[i].get_parameter(name))[0].item()
        assert abs(step + math.copysign(.05, slope)) < 1e-4


def test_the_two_orders_of_tent_and_dsbn_part_after_the_first_step():
    batches = torch.randn(3, 20, 3, generator=generator(7), dtype=torch.float64)
    below, above = (online(name, batches)[0] for name in ("dsbn+tent", "tent+dsbn"))
    assert torch.allclose(below[0], above[0], atol=1e-12) and not torch.allclose(below[1], above[1])


@pytest.mark.parametrize("name", ["dsbn+tent", "tent+dsbn"])
@pytest.mark.parametrize("answer", ["nearest", "mean"])
def test_where_one_branch_answers_it_is_the_one_that_tent_adapts(branched, name, answer):
    got, net, branches = batches_of(name, branched, answer=answer, tent_lr=.05)
    how, held = DSBN(answer=answer), copy.deepcopy(branched.model_of())
    who = copy.copy(branched.fed.target_client)
    how.receive(held, who, how.download(branched.fed.server, who.id))
    how.adapt(held.eval(), who.splits["target"].samples(), who)
    alone, client = Tent(tent_lr=.05), Client("t", {})
    alone.adapt(held, None, client)
    x = prepare_input(who.splits["target"].samples(), "cpu").split(14)
    with torch.no_grad(): want = [alone.predict(held, b, client) for b in x]
    assert all(torch.equal(a, b) for a, b in zip(got, want))
    assert same(net.state_dict(), held.state_dict())


def test_the_server_keeps_its_branches(branched):
    before = {k: v.clone() for k, v in branched.fed.server.state.items() if torch.is_tensor(v)}
    for name in ("dsbn+tent", "tent+dsbn"): batches_of(name, branched, tent_lr=.05)
    assert all(torch.equal(branched.fed.server.state[k], v) for k, v in before.items())


@pytest.mark.parametrize("name", ["fdse+dsbn+tent", "ga+tent+dsbn", "noeval+tent"])
def test_on_top_of_others(tiny, name):
    assert "adapted" in {r[3] for r in run(name, tiny, rounds=1, eval_every=1).rows}


def by_class(data, name):
    "The data set with the samples of a domain sorted by class, as folders hold them."
    d = data[name]
    at = d.y.argsort(stable=True)
    return replace(data, domains=data.domains | {name: Domain(name, d.x[at], d.y[at])})


def test_tent_and_noeval_see_a_sorted_target_in_a_drawn_order(shifted):
    seen, sorted_shift = {}, by_class(shifted, "shifted")
    for key, how in dict(tent={}, noeval={}, stored=dict(tent_order="stored")).items():
        class Looks(method_class("tent" if key == "stored" else key)):
            name = f"looks_{key}"
            def predict(self, model, x, client):
                seen.setdefault(key, []).append(x)
                return super().predict(model, x, client)
        run(Looks, sorted_shift, target="shifted", rounds=1, eval_every=1, **how)
    x = prepare_input(sorted_shift["shifted"].x, "cpu")
    as_stored = {k: torch.equal(torch.cat(v), x) for k, v in seen.items()}
    assert as_stored == dict(tent=False, noeval=False, stored=True)


def test_the_answers_go_back_to_their_places(shifted):
    "With one batch and no step the order changes nothing: the answers, one by one, do not either."
    sorted_shift, how = by_class(shifted, "shifted"), dict(target="shifted", rounds=1, tent_lr=0.)
    x = sorted_shift["shifted"].x
    a, b = (run("tent", sorted_shift, tent_order=k, **how).adapt(x).predict(x) for k in ("drawn", "stored"))
    assert torch.allclose(a, b, atol=1e-4) and not torch.allclose(a, b.flip(0), atol=1e-2)


def test_statistics_of_several_batches_are_drawn():
    g = torch.Generator().manual_seed(0)
    x, net = torch.randn(600, 3, generator=g).sort(0).values, torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    client, stored, drawn = Client("t", {}), copy.deepcopy(net), copy.deepcopy(net)
    reestimate(stored, x)
    BNStats().adapt(drawn, x, client)
    BNStats().adapt(net, x, client)
    assert same(net.state_dict(), drawn.state_dict())
    variances = [m[0].running_var.mean().item() for m in (stored, drawn)]
    assert variances[0] < .6 < .9 < variances[1] < 1.1                 # sorted batches hide what differs between them


def test_a_single_sample_is_answered(tiny):
    one = sized(tiny, optical=60, inked=30, blended=1)
    for name in ("tent", "bnstats", "dsbn"): run(name, one, rounds=1, eval_every=1)
