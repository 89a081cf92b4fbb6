"""FDSE's penalty: its formulas, the loss of a client, Algorithm 3."""
import copy, math
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from types import SimpleNamespace
import fdgnb.models as models
from fdgnb.core import generator, seeded
from fdgnb.data.domain import to_float
from fdgnb.methods.fdse_network import blocks, decompose, moments, owner, shared_statistics, tapped
from fdgnb.methods.fdse_penalty import blank_statistics, consistency_loss, erase, penalty_v1, penalty_v2
from fdgnb.methods.fdse_penalty import take_statistics
from fdgnb.runs.setup import Federation


# -- Eqs. 4 to 7
def random_stats(seed, dims=(3, 5)):
    g = generator(seed)
    return [tuple(f(d, generator=g, dtype=torch.float64) for f in (torch.randn, torch.rand)) for d in dims]


def test_only_the_batch_carries_gradient():
    batch, running = ([tuple(t.requires_grad_() for t in s) for s in random_stats(i)] for i in range(2))
    loss, now = consistency_loss(batch, running, random_stats(2), .9, .5)
    loss.backward()
    assert all(t.grad is not None and t.grad.abs().max() > 0 for s in batch for t in s)
    assert all(t.grad is None for s in running for t in s)
    assert not any(t.requires_grad for s in now for t in s)


def test_at_the_start_of_a_round_it_is_the_distance_of_the_batch():
    "Running statistics that start at the target: the penalty is (1-gamma)^2 times the batch's own distance."
    batch, target = random_stats(0), random_stats(1)
    own = consistency_loss(batch, batch, target, 0., .5)[0]
    assert_close(consistency_loss(batch, target, target, .9, .5)[0], .01*own)


def test_a_step_on_the_penalty_alone_brings_the_batch_nearer():
    with seeded(0):
        plain = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6)
        net = decompose(nn.Sequential(*plain)).double()
    x = torch.rand(16, 3, 10, 10, generator=generator(0), dtype=torch.float64)
    target = [(torch.full_like(m, .3), torch.full_like(v, .5)) for m, v in shared_statistics(net)]
    ours = [p for k, p in net.named_parameters() if owner(k) == "personal"]

    def distance():
        with tapped(net) as taps: net(x)
        return consistency_loss(taps, target, target, 0., .001)[0]
    before = distance()
    grads = torch.autograd.grad(before, ours)
    eta = 1e-3
    with torch.no_grad():
        for p, g in zip(ours, grads): p.sub_(eta*g)
    gain, promised = float((before - distance()).detach()), eta*sum(float(g.square().sum()) for g in grads)
    assert gain > 0 and abs(gain/promised - 1) < .05


def test_the_first_penalty_reads_torchs_running_variance():
    "The release takes BatchNorm's own buffers after the step: variances of n - 1."
    x, bn = torch.randn(4, 3, 2, 2, generator=generator(1), dtype=torch.float64), nn.BatchNorm2d(3).double()
    mg, vg = (torch.rand(3, generator=generator(i), dtype=torch.float64) for i in (2, 3))
    target, f = [(mg, vg)], x.mean((0, 2, 3))
    bn.load_state_dict(bn.state_dict() | dict(running_mean=mg, running_var=vg))
    bn(x)
    mean, var = .9*bn.running_mean + .1*f.mean(), .9*bn.running_var + .1*f.var()
    want = (mg - mean).square().mean() + (vg.mean() - var.mean()).square()
    assert_close(penalty_v1([(*moments(x), 16)], target, target)[0], want, rtol=1e-12, atol=1e-12)


def test_the_latest_penalty_on_a_network_of_one_block():
    "The pair it keeps is of numbers; what a round starts from, a pair of vectors, is none."
    batch, target = random_stats(0, (4,)), random_stats(1, (4,))
    pair = batch[0][0].mean(), batch[0][0].var()
    assert_close(penalty_v2(batch, target, target)[0], penalty_v2(batch, [pair], target)[0])
    now = penalty_v2(batch, target, target)[1]
    assert [t.ndim for t in now[0]] == [0, 0]


DIMS = 3, 5


def inputs_and_target():
    "Images, their moments and number of values, running statistics, statistics to match; two layers."
    g = generator(3)
    xs = [torch.randn(4, d, 2, 3, generator=g, dtype=torch.float64) for d in DIMS]
    return xs, [(*moments(x), 24) for x in xs], random_stats(4, DIMS), random_stats(5, DIMS)


W = [1/(1 + math.exp(.5)), math.exp(.5)/(1 + math.exp(.5))]


def test_v1_by_loops():
    "Two batches, with the running statistics that BatchNorm itself keeps; no gradient passes through them."
    xs, batch, run, target = inputs_and_target()
    bns, kept = [nn.BatchNorm2d(d, dtype=torch.float64) for d in DIMS], run
    for bn, (m, v) in zip(bns, run): bn.load_state_dict(bn.state_dict() | dict(running_mean=m, running_var=v))
    for _ in range(2):
        total = 0.
        for w, x, bn, (mg, vg) in zip(W, xs, bns, target):
            d, m = x.shape[1], x.mean((0, 2, 3)).tolist()
            bn(x)
            mf = sum(m)/d
            vf = sum((q - mf)**2 for q in m)/(d - 1)
            fn = [.9*bn.running_mean[c] + .1*mf for c in range(d)]
            vn = [.9*bn.running_var[c] + .1*vf for c in range(d)]
            total += w*(sum((mg[c] - fn[c])**2 for c in range(d))/d + (sum(vg)/d - sum(vn)/d)**2)
        loss, kept = penalty_v1(batch, kept, target, .9, .5)
        assert_close(loss, total, rtol=1e-6, atol=1e-6)
    leaves = [(m, v.clone().requires_grad_(), n) for m, v, n in batch]
    assert not penalty_v1(leaves, run, target)[0].requires_grad


def test_v2_by_loops():
    "Two batches; the pair of numbers goes from layer to layer."
    _, batch, kept, target = inputs_and_target()
    m, s = batch[0][0].mean(), batch[0][0].var()
    for second in range(2):
        total = 0.
        for l, (w, (mb, *_), (mg, vg)) in enumerate(zip(W, batch, target)):
            if l or second: m, s = .9*m + .1*mb.mean(), .9*s + .1*mb.var()
            each = [(mg[c]**2 - m**2)/(2*s) + .5*(torch.log(s/vg[c]) + vg[c]/s) for c in range(len(mb))]
            total += w*sum(each)/len(mb)
        loss, kept = penalty_v2(batch, kept, target, .9, .5)
        assert_close(loss, total, rtol=1e-6, atol=1e-6)


def received(fed, round=1):
    "The first client and its network, received and in training mode."
    c, m = fed.clients[0], copy.deepcopy(fed.net)
    c.round, c.scratch = round, {}
    down = fed.method.download(fed.server, c.id)
    fed.method.receive(m, c, down)
    fed.method.begin(m, c, down)
    models.set_generator(m.train(), generator(0))
    return c, m


@pytest.mark.parametrize("round", [0, 1])
def test_the_loss_of_a_client_against_hooks_and_autograd(tiny, round):
    "Loss, gradients, buffers; no penalty in the first round; a second batch goes on from the first."
    fed = Federation("dse+consistency", tiny, "blended", lam=3., beta=.5)
    (c, m), (x, y) = received(fed, round), fed.clients[0].take(torch.arange(32))
    for b in blocks(m):
        b.bn_dfe.running_mean.uniform_(-1, 1, generator=generator(7))
        b.bn_dfe.running_var.uniform_(.5, 2, generator=generator(8))
    c.scratch = {}
    fed.method.begin(m, c, {})
    plain, seen, target = copy.deepcopy(m), [], shared_statistics(m)
    models.set_generator(plain, generator(0))
    for b in blocks(plain): b.bn_dfe.register_forward_hook(lambda mod, i, o: seen.append(moments(i[0])))
    loss = fed.method.loss(m, x, y, c)
    loss.backward()
    expected = F.cross_entropy(plain(x), y)
    if round: expected = expected + 3.*consistency_loss(seen, target, target, .9, .5)[0]
    expected.backward()
    assert_close(loss, expected)
    for (k, p), q in zip(m.named_parameters(), plain.parameters()):
        assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5, msg=k)
    for (k, p), q in zip(m.named_buffers(), plain.buffers()): assert torch.equal(p, q), k
    if not round: return
    n, after = len(seen), consistency_loss(seen, target, target, .9, .5)[1]
    again, task = fed.method.loss(m, x, y, c), F.cross_entropy(plain(x), y)
    assert_close(again, task + 3.*consistency_loss(seen[n:], after, target, .9, .5)[0])


def test_without_weight_nothing_is_kept_for_the_penalty(tiny):
    c, _ = received(Federation("dse+consistency", tiny, "blended", lam=0.))
    assert "consistency" not in c.scratch


# -- Algorithm 3
def steps(epochs, lr, batch=20, beta=.001):
    return SimpleNamespace(adapt_epochs=epochs, adapt_lr=lr, adapt_batch=batch, beta=beta)


def test_algorithm_3_moves_the_erasers_alone_and_lowers_the_penalty(tiny):
    "Lower than without steps; the penalty itself grows at first, since it starts at the shared statistics."
    _, m = received(Federation("fdse", tiny, "blended"))
    x = tiny["blended"].x
    for b in blocks(m): b.bn_dfe.running_mean.fill_(.4)
    before = copy.deepcopy(m.state_dict())
    still = erase(copy.deepcopy(m), x, steps(12, 0.), generator(0))
    path = erase(m, x, steps(12, 10.), generator(0))
    assert {owner(k) for k, v in m.state_dict().items() if not torch.equal(v, before[k])} == {"personal", "local"}
    assert path[-1] < .9*still[-1] and len(path) == 24 and not m.training


def test_the_penalties_of_algorithm_3_from_hooks(tiny):
    "Of scaled images, at another beta and with another formula."
    _, m = received(Federation("fdse", tiny, "blended"))
    x, other, rng, seen = tiny["blended"].x, copy.deepcopy(m).eval(), generator(1), []
    got = erase(m, x, steps(2, 0., beta=2.), generator(1), penalty_v2, "half")
    for b in blocks(other):
        b.bn_dse.train()
        b.bn_dfe.register_forward_hook(lambda mod, i, o: seen.append((*moments(i[0]), 0)))
    goal = now = shared_statistics(other)
    order = [i for _ in range(2) for i in torch.randperm(len(x), generator=rng).split(20)]
    for i, value in zip(order, got, strict=True):
        seen.clear()
        other(2*to_float(x[i]) - 1)
        want, now = penalty_v2(seen, now, goal, .9, 2.)
        assert_close(value, want.detach(), rtol=1e-4, atol=1e-5)


def test_statistics_are_averaged_over_batches(tiny):
    "By hand in the first layer, on images scaled to between -1 and 1."
    with seeded(0): net = decompose(models.get("cnn2", 10))
    first, x = blocks(net)[0], tiny["blended"].x
    with torch.no_grad(): z = first.dfe(2*to_float(x) - 1)
    take_statistics(net, x, size=20, normalize="half")
    for found, of in ((first.bn_dse.running_mean, torch.mean), (first.bn_dse.running_var, torch.var)):
        assert_close(found, (of(z[:20], (0, 2, 3)) + of(z[20:], (0, 2, 3)))/2)
    assert (first.bn_dse.momentum, first.bn_dse.training) == (.1, False)


def test_blank_statistics_are_what_a_batchnorm_starts_from():
    fresh = nn.BatchNorm2d(4).state_dict()
    with seeded(0): net = decompose(models.get("cnn2", 10))
    for k, v in blank_statistics(net).items():
        assert (v == fresh[k.rpartition(".")[2]].flatten()[0]).all()
