"""Reweighting: one report decides nothing, who is absent keeps its place, FedGMA's threshold."""
import numpy as np
import pytest
from torch import nn
from fdgnb.core import FdgnbError
from fdgnb.federation.loop import Server, weigh
from fdgnb.methods.reweighting import ARFL, FedGMA, GroupDRO, water_filling
from golden.replay import exact


def heard(losses):
    "Uploads of the first clients of a, b, c."
    return [(k, {"scalars.reweighting.loss": exact(float(v)), "scalars.n": exact(n)})
            for k, n, v in zip("abc", (5., 10., 20.), losses)]


def test_one_report_decides_nothing():
    "A loss of 1e11, once, gave a client all weight for ever; one below 0 gives it all of ARFL's."
    rule, server = GroupDRO(eta_q=.1), Server({}, "abc", n_classes=3)
    rule.setup(server)
    with pytest.warns(UserWarning, match="client 'c' reports a loss over 10 times"):
        weights = rule.decide(server, heard([1., 1.2, 1e11]))
    assert weights["c"] == 1 and weights["a"] == pytest.approx(np.exp(.1*(1 - 11)))
    for cls in (GroupDRO, ARFL):
        with pytest.raises(FdgnbError, match="client 'b' reports the loss -1"): cls().decide(server, heard([1, -1, 1]))


def test_an_absent_client():
    "ARFL uses its last loss; GroupDRO leaves its q, but for the common division."
    arfl, dro, at_arfl, at_dro = ARFL(reg=.5), GroupDRO(eta_q=.5), Server({}, "abc"), Server({}, "abc")
    dro.setup(at_dro)
    for losses in ((1., 2., .8), (1.5, .4)):
        by_arfl, by_dro = arfl.decide(at_arfl, heard(losses)), dro.decide(at_dro, heard(losses))
    a = water_filling(exact([1.5, .4, .8]), exact([5., 10., 20.]), .5*35)
    q = np.exp([.5*(1. + 1.5), .5*(2. + .4), .5*.8])
    np.testing.assert_allclose(list(by_arfl.values()), (a/a.max())[:2])
    np.testing.assert_allclose(list(by_dro.values()), (q/q.max())[:2])


@pytest.mark.parametrize("tau, move", [(.5, .5), (.51, .25)])
def test_fedgma_at_its_threshold(tau, move):
    net, rule = nn.Module(), FedGMA(tau=tau)
    net.w = nn.Parameter(exact([0.]))
    server = Server(net.state_dict(), "abcd", net=net)
    uploads = [(k, {"model.w": exact([w]), "scalars.n": exact(10.)}) for k, w in zip("abcd", (1., 1., 1., -1.))]
    rule.aggregate(server, weigh(rule, server, uploads))
    assert server.model["w"].item() == pytest.approx(move)
