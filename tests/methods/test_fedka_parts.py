"The functions and parts of FedKA by hand: distances, classifier, votes, what stays where, steps and answers."
import copy, dataclasses, math
import fdgnb, pytest, torch
import fdgnb.models as models
import numpy as np
import torch.nn.functional as F
from conftest import slice_of
from torch import nn
from fdgnb.core import generator, seeded
from fdgnb.federation.compose import method_class
from fdgnb.federation.loop import Client, Server, client_update, downloads, weigh
from fdgnb.federation.shared import prepare_input, redraw_weights
from fdgnb.methods import fedka
from fdgnb.methods.fedka import Disentangler, distance_gradients, FDANN, gather_batch, group_effect, MKMMD
from fdgnb.methods.fedka import normalize_by_batch, train_critic, tune, vote, Voting
from fdgnb.methods.fedka_losses import bandwidths, critic_step, Discriminator, domain_loss, mk_mmd, Reverse
from fdgnb.methods.fedka_losses import squared_distances
from fdgnb.methods.fedka_target import add_gradients, borrow, cycle_rows, keep_gradients, lend_optimizer, Pulled, ramp
from fdgnb.methods.fedka_target import Ramped, run_in, Subsample, target_features
from fdgnb.models import Dropout
from fdgnb.settings import Settings
from fdgnb.vectors import digest, nbytes, part, tagged

close = torch.testing.assert_close


@pytest.fixture(scope="module")
def data(): return slice_of(fdgnb.get_dataset("digits"), 96)


def toy_server(m, data, **settings):
    "A server with `m` at work, two clients, and a slice of `blended` as its target."
    with seeded(0): net = m.build(models.get("cnn2", 10))
    state, settings = {k: v.clone() for k, v in net.state_dict().items()}, Settings(batch_size=16, **settings)
    server = Server(state, "ab", settings, rounds=2, net=net, public=data["blended"].x, n_classes=10)
    m.setup(server)
    return server


def toy_round(m, data):
    "One client's second of two rounds of `m` on 40 images: (client, download, upload, server)."
    server = toy_server(m, data)
    down = downloads(m, server)["a"]
    client = Client("a", dict(train=(data["optical"].x[:40], data["optical"].y[:40])), server.settings, rounds=2)
    return client, down, client_update(m, server.net, client, down, 1), server


def toy_client(n, settings=Settings(batch_size=16), **kw):
    g = generator(0, purpose=f"toy {n}")
    x, y = torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)
    return Client("a", dict(train=(x, y)), settings, **kw)


def two_clouds(n, m, dim, seed=0):
    g = generator(seed, purpose="clouds")
    return tuple(torch.randn(k, dim, generator=g, dtype=torch.float64) for k in (n, m))


# -------------------------------------------------------------------------------------------- distance
def test_distances_and_bandwidths_pair_by_pair():
    z, _ = two_clouds(7, 1, 3)
    close(squared_distances(z), torch.cdist(z, z)**2)
    pairs = [((z[i] - z[j])**2).sum() for i in range(7) for j in range(7) if i != j]
    widths = [b.item() for b in bandwidths(squared_distances(z))]
    assert widths == pytest.approx([f*np.mean(pairs) for f in (1/4, 1/2, 1, 2, 4)])


def test_distances_keep_their_digits_far_from_the_origin():
    z, _ = two_clouds(7, 1, 3)
    far = 1000 + z.float()
    sq = (far*far).sum(1)
    textbook, centered = sq[:, None] + sq - 2*far@far.T, squared_distances(far)
    error = [(d.double() - squared_distances(z)).abs().max().item() for d in (textbook, centered)]
    assert error[1] < 1e-2 < error[0]


def test_mk_mmd_is_symmetric_and_knows_neither_scale_nor_place():
    hs, ht = two_clouds(6, 9, 4)
    there = mk_mmd(hs, ht).item()
    assert mk_mmd(hs, hs).item() == pytest.approx(0, abs=1e-12)
    assert mk_mmd(ht, hs).item() == pytest.approx(there, abs=1e-12)
    assert mk_mmd(3*hs + 7, 3*ht + 7).item() == pytest.approx(there, abs=1e-12)


def test_gather_batch_gives_two_of_three_as_one_of_six():
    bank, (a, b) = [], torch.randn(6, 2, generator=generator(0)).split(3)
    assert gather_batch(bank, a, 6) is None and len(bank) == 1
    assert torch.equal(gather_batch(bank, b, 6), torch.cat([a, b])) and not bank


@pytest.mark.parametrize("size", [20, 10])
def test_distance_gradients_are_each_batch_s_own(size):
    "Each batch is held against its own rows of the target."
    (hs, ht), order = two_clouds(20, 20, 5), torch.randperm(20, generator=generator(2))
    got = distance_gradients(hs, ht, order, size, mk_mmd)
    for rows in (slice(b, b + size) for b in range(0, 20, size)):
        leaf = hs[order[rows]].requires_grad_()
        want, = torch.autograd.grad(mk_mmd(leaf, ht[rows]), leaf)
        close(got[order[rows]], want)


# ------------------------------------------------------------------------------------------ classifier
def test_with_lambda_zero_nothing_reaches_the_encoder():
    h = torch.randn(4, 3, generator=generator(1), requires_grad=True)
    none, = torch.autograd.grad((Reverse.apply(h, 0.)**3).sum(), h)
    assert not none.any()


def test_the_classifier_in_evaluation_mode_is_the_same_in_one_batch_or_two():
    hs, ht = two_clouds(6, 9, 4)
    with seeded(0): critic, large = Discriminator(4).double().eval(), Discriminator(800)
    assert domain_loss(critic, hs, ht).item() == pytest.approx(domain_loss(critic, hs, ht, joint=False).item())
    assert sum(p.numel() for p in large.parameters()) == 800*100 + 100 + 2*100 + 100*2 + 2


def test_a_classifier_that_clients_share_answers_from_the_other_s_features_too():
    def answers(shared):
        "The gradients sent to client 0 in three batches; client 1 shares its f_d, or each has one."
        g = generator(0, purpose="turns")
        with seeded(0): critics = [Discriminator(8).double()]*2
        if not shared: critics = [copy.deepcopy(c) for c in critics]
        steps = [torch.optim.SGD(c.parameters(), .1) for c in critics]
        batches = torch.randn(3, 2, 2, 16, 8, generator=g, dtype=torch.float64)
        return [[critic_step(critics[k], steps[k], *b[k]) for k in (0, 1)][0] for b in batches]
    one, own = answers(True), answers(False)
    assert torch.equal(one[0], own[0]) and not any(torch.allclose(a, b) for a, b in zip(one[1:], own[1:]))


def test_train_critic_by_hand(data):
    "Two batches, each beside its own rows of the target; a second pass starts where the first ended."
    server, g = toy_server(Ramped(), data), generator(0, purpose="critic")
    hs, ht = torch.randn(40, 8, generator=g), torch.randn(32, 8, generator=g)
    with seeded(0): critic = Discriminator(8)
    order, start = torch.randperm(40, generator=g), copy.deepcopy(critic).train()
    back = train_critic(server, critic.train(), hs, ht, order, True)
    for rows in (slice(0, 16), slice(16, 32)):
        leaf = hs[order[rows]].requires_grad_()
        up, *grads = torch.autograd.grad(domain_loss(start, leaf, ht[rows]), [leaf, *start.parameters()])
        close(back[order[rows]], -up)
        with torch.no_grad():
            for p, q in zip(start.parameters(), grads): p -= server.settings.lr*q
    assert not torch.equal(server.state["critic.net.fc2.bias"], start.first["net.fc2.bias"])
    left = {k: v.clone() for k, v in part(server.state, "critic").items()}
    critic.load_state_dict(critic.first)
    server.settings = dataclasses.replace(server.settings, lr=0.)
    train_critic(server, critic, hs, ht, order, True)                               # a pass that moves nothing
    assert all(torch.equal(v, left[k]) for k, v in critic.named_parameters())


def of_critic(payload): return sum("discriminator" in k for k in payload)


@pytest.mark.parametrize("h, travels, kept", [({}, 9, 0), (dict(critic="kept"), 0, 9), (dict(exchange="up"), 0, 0)])
def test_where_the_nine_tensors_of_the_classifier_are(data, h, travels, kept):
    client, down, up, server = toy_round(Disentangler(**h), data)
    assert (of_critic(down), of_critic(up), len(part(client.state, "critic"))) == (travels, travels, kept)
    assert server.net.eval()(client.take(torch.arange(3))[0]).shape == (3, 10)


def test_a_kept_classifier_is_the_one_that_a_client_trains_on(data):
    client, down, _, server = toy_round(Disentangler(critic="kept"), data)
    critic = server.net.discriminator
    critic.load_state_dict(critic.first)
    Disentangler(critic="kept").receive(server.net, client, down)
    assert all(torch.equal(v, client.state[f"critic.{k}"]) for k, v in critic.state_dict().items())
    assert not torch.equal(critic.first["net.fc2.bias"], critic.net.fc2.bias), "the first weights do not train"
    assert torch.equal(copy.deepcopy(critic).first["net.fc2.bias"], critic.first["net.fc2.bias"])


def test_the_gradients_of_eqs_8_and_3(data):
    "The features get -lambda_p times the gradient of J_dis, every parameter of the classifier the whole."
    m = Disentangler()
    client, down, _, server = toy_round(m, data)
    critic, h = server.net.discriminator.train(), torch.randn(16, 800, generator=generator(0)).requires_grad_()
    client.scratch |= dict(b=1, p=.5)
    losses = m._domain(server.net, h, client), domain_loss(critic, h, down["features.fedka.target"][16:32])
    got, want = (torch.autograd.grad(J, [h, *critic.parameters()]) for J in losses)
    for a, b, factor in zip(got, want, [-ramp(.5)] + [1.]*9): close(a, factor*b, rtol=1e-4, atol=1e-6)


def test_fdann_reaches_the_encoder_from_both_sides(data):
    m = FDANN()
    client, down, _, server = toy_round(m, data)
    client.scratch |= dict(b=1, p=.5)
    net = server.net.eval()
    encoder, hs = [*net.features.parameters()], net.features(client.take(torch.arange(16))[0])
    ht = net.features(prepare_input(down["images.fedka.target"][16:32], "cpu"))
    losses = m._domain(net, hs, client), domain_loss(net.discriminator, hs, ht)
    got, want = (torch.autograd.grad(J, encoder, retain_graph=True) for J in losses)
    for a, b in zip(got, want): close(a, -ramp(.5)*b, rtol=1e-3, atol=1e-6)
    both = method_class("fdan+fdann")().h
    assert (both.match_encoder, both.domain_encoder) == ("client", "client")


def test_what_goes_down_after_features_went_up_is_the_critic_s_answer(data):
    m = Disentangler(exchange="up", critic_batch="apart")
    _, down, up, server = toy_round(m, data)
    hs = up["features.fedka.source"]
    assert hs.shape == (40, 800) and {k.split(".")[0] for k in down} == {"model"}
    twin, order = copy.deepcopy(server), torch.randperm(40, generator=server.rng("critic a"))
    ht, index = target_features(twin, "train"), server.state["target.index"]
    m.aggregate(server, weigh(m, server, [("a", up)]))
    want = train_critic(twin, twin.net.discriminator.train(), hs, ht, order, False)
    close(m.download(server, "a")["features.fedka.gradient"], want)
    assert want.abs().max() > 0 and not torch.equal(server.state["target.index"], index)


def test_features_go_up_in_the_mode_that_is_asked_for(data):
    client, _, up, server = toy_round(Disentangler(exchange="up", mode="eval"), data)
    still = server.net.eval().features(client.take(torch.arange(40))[0]).detach()
    close(up["features.fedka.source"], still, rtol=1e-4, atol=1e-5)
    m = Disentangler(exchange="up")
    client, _, up, server = toy_round(m, data)
    assert (up["features.fedka.source"] - still).abs().max() > .1
    for d in server.net.modules():
        if isinstance(d, Dropout): d.p = 0.
    at_once = server.net.train().features(client.take(torch.arange(40))[0]).detach()
    close(m.upload(server.net, client)["features.fedka.source"], at_once, rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------------------------- matching
def test_a_matching_that_fits_into_a_batch_is_made_at_once(data):
    m = MKMMD(mmd_batch=16)
    client, down, _, server = toy_round(m, data)
    client.scratch |= dict(b=1, p=.5)
    net, ht, h = server.net, down["features.fedka.target"], torch.randn(16, 800, generator=generator(0))
    assert m._match(net, None, h, client).item() == pytest.approx(ramp(.5)*mk_mmd(h, ht[16:32]).item(), abs=1e-6)
    summed = MKMMD(kernels="sum")._to_target(net, h, 0, client).item()
    assert summed == pytest.approx(5*mk_mmd(h, ht[:16]).item(), abs=1e-6)


class Counted(MKMMD):
    "Notes what it matched: how many, the target's rows, the distance."
    seen = []

    def _distance(self, h, ht):
        self.seen.append((len(h), ht, super()._distance(h, ht)))
        return self.seen[-1][2]


@pytest.mark.parametrize("n, sizes, places", [(16, [16, 16, 8], (0, 1, 2)), (32, [16], (1,))])
def test_steps_of_its_own_as_released(data, monkeypatch, n, sizes, places):
    "Of two batches the second counts, over two, times the ramp; a third has no partner."
    losses, real = [], fedka.descend
    def descend(method, loss, *rest):
        losses.append(loss.item())
        real(method, loss, *rest)
    monkeypatch.setattr(fedka, "descend", descend)
    monkeypatch.setattr(Counted, "seen", [])
    _, down, _, _ = toy_round(Counted(mmd_batch=n, matching="apart"), data)
    assert [v[0] for v in Counted.seen] == sizes
    rows = cycle_rows(down["features.fedka.target"], 16*4, 0)
    for (k, ht, _), b in zip(Counted.seen, places): assert torch.equal(ht, rows[16*b:16*b + k])
    want = [ramp((b/3 + 1)/2)*v[2].item()*16/n for v, b in zip(Counted.seen, places)]
    assert losses == pytest.approx(want, abs=1e-6)


def test_steps_of_its_own_use_as_many_samples_as_asked_for(data, monkeypatch):
    monkeypatch.setattr(Counted, "seen", [])
    toy_round(Counted(mmd_batch=16, matching="apart", samples=20), data)
    assert [v[0] for v in Counted.seen] == [16, 4]


def test_with_features_up_the_server_sends_the_distance_s_gradients(data):
    m = MKMMD(exchange="up", matching="apart", kernels="sum", mmd_batch=20)
    _, _, up, server = toy_round(m, data)
    hs, ht = up["features.fedka.source"], target_features(server, "train")
    order = torch.randperm(40, generator=server.rng("match a"))
    m.aggregate(server, weigh(m, server, [("a", up)]))
    for b, i in enumerate(order.split(20)):
        leaf = hs[i].requires_grad_()
        want, = torch.autograd.grad(5*mk_mmd(leaf, ht[20*b:20*b + 20]), leaf)
        close(server.state["pull.a"][i], want)


def test_without_the_ramp_no_features_go_up(data):
    m = MKMMD(exchange="up", gamma=0.)
    _, _, up, server = toy_round(m, data)
    m.aggregate(server, weigh(m, server, [("a", up)]))
    assert "features.fedka.source" not in up and "pull.a" not in server.state


# ---------------------------------------------------------------------------------- rounds and weights
@pytest.mark.parametrize("samples, n, sizes", [(64, 1000, [16]*4), (64, 40, [16, 16, 8]), (None, 40, [16, 16, 8])])
def test_subsample_draws_each_sample_once(samples, n, sizes):
    batches = list(Subsample(samples=samples).sample(toy_client(n), generator(0)))
    assert [len(b) for b in batches] == sizes and len(torch.cat(batches).unique()) == sum(sizes)


def test_subsample_draws_anew_in_each_epoch_and_drops_the_last():
    twice = toy_client(40, Settings(batch_size=16, local_epochs=2, drop_last=True))
    a, b = torch.cat(list(Subsample(samples=36).sample(twice, generator(0)))).view(2, 32).tolist()
    assert len({*a}) == len({*b}) == 32 and {*a} != {*b}


@pytest.mark.parametrize("samples, n, weight", [(64, 1000, 64), (64, 40, 40), (None, 1000, 1000)])
def test_subsample_weighs_by_the_samples_used(samples, n, weight):
    client = toy_client(n)
    client.scratch["loss"] = 0.
    with seeded(0): net = nn.Linear(1, 1)
    assert Subsample(samples=samples).upload(net, client)["scalars.n"].item() == weight


def test_the_weights_follow_the_variant_unless_given():
    def weights(**h): return Ramped(**h).h.weights
    assert (weights(), weights(variant="released")) == ("samples", "uniform")
    assert weights(variant="released", weights="samples") == "samples"
    server, seven = Server({}, "ab"), {"scalars.n": torch.tensor(7.)}
    assert [Ramped(weights=w).weight(server, "a", seven) for w in ("samples", "uniform")] == [7., 1.]


def test_the_ramp_ends_at_the_same_height_in_short_and_long_runs():
    ends = [ramp((7/8 + rounds - 1)/rounds) for rounds in (30, 200)]
    assert ends == pytest.approx([ramp(1.)]*2, abs=1e-3)


def test_redrawn_weights_are_a_client_s_own_and_as_wide_as_a_fresh_layer():
    with seeded(0): net = nn.Linear(50, 40)
    server = Server({k: v.clone() for k, v in net.state_dict().items()}, range(16), net=net)
    draws = [redraw_weights(server, k)["weight"] for k in server.clients]
    assert torch.equal(draws[0], redraw_weights(server, 0)["weight"]) and not torch.equal(draws[0], draws[1])
    for w in draws: assert w.std().item() == pytest.approx(net.weight.std().item(), abs=.005)
    assert (sum(draws)/16).std().item() == pytest.approx(net.weight.std().item()/4, abs=.005)
    server.seed = 1
    assert not torch.equal(draws[0], redraw_weights(server, 0)["weight"])


def test_first_weights_of_each_client_are_averaged_once():
    "The unseen client has the server's; after the first average all have that."
    with seeded(0): net = nn.Linear(6, 4)
    server, m = Server({k: v.clone() for k, v in net.state_dict().items()}, ["a", "b"], net=net), Ramped(first="each")
    m.setup(server)
    def sent(k): return m.download(server, k)["model.weight"]
    assert not torch.equal(sent("a"), sent("b")) and torch.equal(sent("unseen"), server.model["weight"])
    two = {k: sent(k) for k in "ab"}
    ups = ((k, tagged("model", redraw_weights(server, k)) | {"scalars.n": torch.tensor(1.)}) for k in "ab")
    m.aggregate(server, weigh(m, server, ups))
    close(server.model["weight"], (two["a"] + two["b"])/2)
    assert all(torch.equal(sent(k), server.model["weight"]) for k in ("a", "b", "unseen"))


# ------------------------------------------------------------------------------- a network at the server
def test_run_in_leaves_the_module_as_it_is():
    x = (torch.rand(2, 3, 4, 4, generator=generator(0))*255).byte()
    close(prepare_input(x, "cpu", "half"), x/127.5 - 1)
    with seeded(0): net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), Dropout(.5))
    before, x = digest(net.state_dict()), torch.randn(8, 6, generator=generator(0))
    assert torch.equal(run_in(net, [x], "eval", generator(1)), net.eval()(x).detach())
    trained = run_in(net, [x], "train", generator(1))
    assert not torch.equal(trained, net(x)) and torch.equal(trained, run_in(net, [x], "train", generator(1)))
    assert digest(net.state_dict()) == before and net[2].generator is None


def step_on(net, optimizer):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_a_lent_optimizer_goes_on_where_it_stopped():
    with seeded(0): net = nn.Linear(2, 1, bias=False)
    server = Server({}, "a", Settings(optimizer="adam", keep_optimizer=True))
    for i in range(2):
        with lend_optimizer(server, net, "toy") as optimizer: step_on(net, optimizer)
    assert server.state["toy.optim.0.step"].item() == 2


def test_a_lent_optimizer_has_the_round_s_rate_and_is_forgotten_unless_kept():
    with seeded(0): net = nn.Linear(2, 1, bias=False)
    server = Server({}, "a", Settings(optimizer="adam", lr=1., lr_decay=.5))
    server.round = 2
    with lend_optimizer(server, net, "toy") as optimizer: step_on(net, optimizer)
    assert optimizer.param_groups[0]["lr"] == .25 and part(server.state, "toy") == {}


def test_rows_start_over_at_the_end(): assert cycle_rows(torch.arange(5), 4, 3).tolist() == [3, 4, 0, 1]


def test_gradients_of_two_terms_add_up_client_by_client(data):
    server = toy_server(Ramped(), data)
    uploads = [(k, {"features.fedka.source": torch.ones(2, 3)*i}) for i, k in enumerate("ab")]
    def halves(server, k, h): return h/2
    def ones(server, k, h): return torch.ones_like(h)
    passed = list(keep_gradients(server, add_gradients(server, add_gradients(server, uploads, halves), ones)))
    assert [(k, server.state[f"pull.{k}"][0, 0].item()) for k, _ in passed] == [("a", 1.), ("b", 1.5)]


def test_the_target_s_features_are_computed_once_and_not_sent_to_the_unseen(data):
    m = Pulled(target_samples=50)
    server = toy_server(m, data)
    a, b = (m._needs(server, k, "global")["features.fedka.target"] for k in "ab")
    assert a is b and a.shape == (50, 800)
    assert nbytes(m._needs(server, "a", "client"))["images"] == 50*3*28*28
    assert m._needs(server, "blended", "global") == m._needs(server, "blended", "client") == {}


# ---------------------------------------------------------------------------------------------- voting
def test_voting_gains_where_errors_are_independent():
    def elect(a, K, shared=False):
        g = generator(0, purpose=f"elect {a} {K}")
        said = torch.randint(1, 10, (1 if shared else K, 20_000), generator=g)
        said[torch.rand(said.shape, generator=g) < a] = 0
        return (vote(said.expand(K, -1), 10, g) == 0).float().mean().item()
    for a in (.2, .5, .8):
        assert elect(a, 4, shared=True) == pytest.approx(a, abs=.01)
        assert elect(a, 8) > elect(a, 4) > a + .01


@pytest.mark.parametrize("sent", ["tuned", "plain"])
def test_a_round_of_voting(data, sent):
    "Every label that wins has most votes; clients start from the tuned model or from the average."
    states, m = [], Voting(votes=60, sent=sent)
    for s in range(3):
        with seeded(s): states.append(models.get("cnn2", 10).state_dict())
    uploads = ((str(i), tagged("model", s) | {"scalars.n": torch.tensor(1.)}) for i, s in enumerate(states))
    server = toy_server(m, data, lr=.1)
    server.round = 1
    m.aggregate(server, weigh(m, server, uploads))
    average, rows, labels = server.model, server.state["vote.rows"], server.state["vote.labels"]
    assert len(rows.unique()) == 60 and labels.shape == (60,) and not torch.equal(rows, rows.sort().values)
    x = data["blended"].x[rows].float()/255
    said = [borrow(server, s).eval()(x).argmax(1).tolist() for s in states]
    for column, won in zip(zip(*said), labels.tolist()): assert column.count(won) == max(map(column.count, column))
    m.finish(server)
    assert (digest(part(m.download(server, "a"), "model")) == digest(average)) == (sent == "plain")
    assert digest(part(m.download(server, "blended"), "model")) == digest(server.model) != digest(average)
    net = models.set_generator(borrow(server, average), server.rng("tuning dropout")).train()
    tune(server, net, torch.optim.SGD(net.parameters(), .1), rows, labels, 5., "step")
    for k, v in net.state_dict().items(): close(server.model[k], v, rtol=1e-4, atol=1e-6)


def test_labels_by_a_network_are_its_largest_logits(data):
    server, rows = toy_server(Ramped(), data), torch.arange(60)
    want = borrow(server, server.model).eval()(prepare_input(data["blended"].x[rows], "cpu")).argmax(1)
    assert torch.equal(fedka.ask_opinion(server, server.model, rows, "eval", generator(0)), want)


# -------------------------------------------------------------------------------- measures, evaluation
def test_group_effect_by_hand():
    assert group_effect([.4, .6, .5], .45) == pytest.approx(.05)
    assert group_effect([[.4, .2], [.6, .4]], [.6, .1]).tolist() == pytest.approx([-.1, .2])


def test_a_lone_sample_has_no_statistics_of_its_own():
    x = torch.randn(1, 3, generator=generator(0))
    close(normalize_by_batch(nn.BatchNorm1d(3), x), nn.BatchNorm1d(3).eval()(x))


def test_the_ramp_is_a_hyperbolic_tangent():
    assert [ramp(p) for p in (0, .3, 1)] == pytest.approx([math.tanh(2.5*p) for p in (0, .3, 1)])
    assert [ramp(p, 0) for p in (0, .5, 1)] == [0.]*3


def test_without_an_answer_of_the_server_the_loss_is_cross_entropy(data):
    m = Pulled(target_samples=50)
    server = toy_server(m, data)
    client = Client("a", dict(train=(data["optical"].x, data["optical"].y)), rounds=2)
    (x, y), client.scratch = client.take(torch.arange(8)), dict(p=.5, idx=torch.arange(8))
    net = models.set_generator(server.net.train(), generator(5))
    got, h = m.loss(net, x, y, client), models.set_generator(net, generator(5)).features(x)
    close(got, F.cross_entropy(net.head(h), y))
