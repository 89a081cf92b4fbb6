"""What methods share: the page's checks fail on wrong code."""
import pytest
import pages

PAGE = "federation/06_shared.ipynb"
MUTATIONS = {
    "averages by uniform weights": ("server.weights[k]/total)", "1/len(uploads))"),
    "buffers count as parameters": ("for q, _ in server.net.named_parameters() if", "for q in server.model if"),
    "what one client sent counts": ("if all(f", "if any(f"),
    "weights not put back": ("p.copy_(v)", "v.copy_(p)"),
    "down, not up": ("p.add_(step)", "p.sub_(step)"),
    "a distance without squares": (".square().sum()", ".abs().sum()"),
    "references, not copies": ("v.detach().clone() for k, v in state", "v.detach() for k, v in state"),
    "one draw for all clients": ("f\"first weights of {k}\"", "\"first weights\""),
    "branches left out": (", *client.scratch.get(\"dsbn\", ())", ","),
    "not scaled": ("scaled(to_float(x.to(device)), normalize)", "to_float(x.to(device))"),
}


def test_page(): pages.check(PAGE)


@pytest.mark.parametrize("what", MUTATIONS)
def test_page_fails_on(what):
    with pytest.raises((AssertionError, ValueError)): pages.check(PAGE, *MUTATIONS[what])
