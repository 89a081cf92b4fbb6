"""Deployments in one process: sites with folders of their own, and a server without data."""
import json, shutil, stat
from importlib.util import find_spec
import pytest
import torch
import fdgnb

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from conftest import says
from fdgnb.flower import deployment, site
from fdgnb.flower.wire import pack, unpack
from flwr.app import Context, Message, RecordDict
from hospitals import Grid, deploy, nodes_of, write_hospitals

OPTIONS = dict(size=16, lr=.05, batch_size=8, local_steps=1)
NUMBER = dict(blended=1, cluttered=2, inked=3, optical=4, rendered=5)         # Flower's number of a site's node


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory): return write_hospitals(tmp_path_factory.mktemp("data"))


@pytest.fixture
def own(hospitals, tmp_path):
    "A copy of the folders that a test may change."
    return shutil.copytree(hospitals, tmp_path/"data"/"hospitals")


def plan_of(method="scaffold", rounds=3, **more):
    return dict(method=method, dataset="hospitals", rounds=rounds, hyper=OPTIONS | dict(eval_every=0) | more)


def serial(hospitals, method="scaffold", rounds=3, **more):
    return fdgnb.fit(method, hospitals, "blended", rounds, progress=False, **OPTIONS | dict(eval_every=0) | more)


def nodes_that_allow(hospitals, home, kinds, but=""):
    "Nodes whose sites allow kinds of uploads, but one of them."
    nodes = nodes_of(hospitals, home)
    for name, config in nodes.values(): config["allow"] = "" if name == but else kinds
    return nodes


def assert_same(run, whole):
    "Model, history and ledger; a client's model is not scored on the target, whose samples are elsewhere."
    state, other = run.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(v, other[k]) for k, v in state.items())
    rows = [[repr(r) for r in r.rows if r[2:4] != ("target", "local")] for r in (run, whole)]
    assert rows[0] == rows[1] and run.ledger.equals(whole.ledger)


@pytest.mark.parametrize("method, more", [("scaffold", {}), ("fedbn", {}), ("fedbr", {}), ("local", {}),
                                          ("fedka", dict(mmd_batch=8))])
def test_a_deployment_is_the_run_over_the_joined_folders(hospitals, tmp_path, method, more):
    more = more | dict(eval_every=1)
    nodes, public = nodes_that_allow(hospitals, tmp_path, "images"), hospitals/"blended" if method == "fedka" else None
    run, *_ = deploy(hospitals, tmp_path, plan_of(method, 2, **more), nodes, public=public)
    whole = serial(hospitals, method, 2, **more)
    assert_same(run, whole)
    kept = fdgnb.load(tmp_path/"server")
    files, at_site = sorted(hospitals.glob("inked/*/*.png"))[:4], next((tmp_path/"inked").glob(f"{method}-*"))
    if method == "local": says(lambda: kept.predict(files), "at a site")
    else: assert kept.predict(files).shape == (4, 3)
    says(lambda: kept.model_of("inked"), "at its site")
    assert fdgnb.load(at_site).predict(files).equal(whole.predict(files, domain="inked"))
    at_site = fdgnb.load(at_site).model_of().state_dict()
    assert all(torch.equal(v, at_site[k]) for k, v in whole.model_of("inked").state_dict().items())


@pytest.mark.parametrize("how", ["an empty folder", "classes of the plan"])
def test_a_site_may_lack_a_class(own, tmp_path, how):
    shutil.rmtree(own/"inked"/"class 0")
    more = dict(load=dict(classes=["class 2", "class 0", "class 1"])) if how == "classes of the plan" else {}
    whole = serial(own, "fedavg", 1, **more)
    if not more: (own/"inked"/"class 0").mkdir()
    run, *_ = deploy(own, tmp_path, plan_of("fedavg", 1, **more))
    assert_same(run, whole)


# ---- who is absent, and comes back

def test_a_site_that_does_not_answer_comes_back_under_another_number(hospitals, tmp_path):
    "It goes on from its own state; the bits are those of the run without it in that round."
    nodes = nodes_of(hospitals, tmp_path)
    grid = Grid(site.app, nodes, dict(fdgnb=json.dumps(plan_of())))
    def before(asked, node, about):
        if (asked, node, about.get("round")) == ("train", NUMBER["inked"], 1): grid.nodes[99] = grid.nodes.pop(node)
    run, _, said = deploy(hospitals, tmp_path, plan_of(), nodes, grid, before)
    assert_same(run, serial(hospitals, drops=((2, "inked"),)))
    assert any("without client 'inked'" in line for line in said) and said.count("site 'inked' is here") == 2


def test_a_server_that_was_killed_goes_on_and_a_round_played_twice_has_the_same_bits(hospitals, tmp_path):
    def kill(asked, node, about):
        if (asked, node, about.get("round")) == ("train", NUMBER["optical"], 1): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): deploy(hospitals, tmp_path, plan_of(), before=kill)
    run, _, said = deploy(hospitals, tmp_path, plan_of())
    assert "goes on after round 1" in said
    assert_same(run, serial(hospitals))
    deploy(hospitals, tmp_path, plan_of(rounds=4))
    assert len([*tmp_path.glob("inked/*/state-*")]) == 3                       # the last three
    deploy(hospitals, tmp_path, plan_of(rounds=1), out=tmp_path/"another run")
    assert len([*tmp_path.glob("inked/*/")]) == 2
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in tmp_path.glob("inked/*/"))


def test_a_run_goes_on_without_a_site_that_lost_its_state_or_changed_its_folder(own, tmp_path):
    deploy(own, tmp_path, plan_of(rounds=1))
    next(tmp_path.glob("inked/*/state-0001*")).unlink()
    def change(asked, node, about):
        if (asked, node) == ("train", NUMBER["optical"]): next(own.glob("optical/*/*.png")).unlink()
    run, _, said = deploy(own, tmp_path, plan_of(rounds=2), before=change)
    assert any("'inked'" in line and "the state after round 1 is not in" in line for line in said)
    assert any("'optical'" in line and "other samples than when the run began" in line for line in said)
    assert {row[1] for row in run.rows if row[0] == 2 and row[3] == "training"} == {"cluttered", "rendered"}
    nodes = nodes_of(own, tmp_path)
    del nodes[NUMBER["cluttered"]]
    *_, said = deploy(own, tmp_path, plan_of(rounds=3), nodes, sites=[*NUMBER])
    assert any("refused: site 'optical' is not as it was when the run began" in line for line in said)
    assert "after 0 s without cluttered, optical" in said


# ---- faults of a deployment: what is refused or said, and of whom

def times(factor):
    def change(payload, said):
        payload.update({k: v*factor for k, v in payload.items() if k.startswith("model.") and v.is_floating_point()})
    return change


def fail(payload, said): said.update(error="site 'optical': its images\nare \x1b[2J damaged")


@pytest.mark.parametrize("change, more, parts", [
    (times(1000), {}, ("site 'inked'", "max_change=100")), (times(1000), dict(max_change=0), ("exploded", "'inked'")),
    (fail, {}, ("site 'inked' says: site 'optical': its images", "damaged"))], ids=["far", "any", "blames"])
def test_a_fault_ends_the_run_in_the_name_of_its_sender(hospitals, tmp_path, change, more, parts):
    def alter(asked, node, payload, said):
        if (asked, node) == ("train", NUMBER["inked"]): change(payload, said)
    says(lambda: deploy(hospitals, tmp_path, plan_of("fedavg", 1), after=alter, **more), *parts)


def test_a_loss_that_cannot_be_does_not_take_over(hospitals, tmp_path):
    def alter(asked, node, payload, said):
        key = "scalars.reweighting.loss"
        if key in payload and node == NUMBER["inked"]: payload[key] = payload[key]*0 + 1e11
    run, *_ = deploy(hospitals, tmp_path, plan_of("groupdro", 1), after=alter)
    assert run.fed.server.state["groupdro.log_q"].exp().max() < .99


def test_of_two_uploads_none_is_accused(hospitals, tmp_path):
    def alter(asked, node, payload, said):
        if (asked, node) == ("train", NUMBER["inked"]): times(1.1)(payload, said)
    nodes = {n: v for n, v in nodes_of(hospitals, tmp_path).items() if n <= 3}
    *_, said = deploy(hospitals, tmp_path, plan_of("fedavg", 1), nodes, after=alter, max_change=.1)
    assert any("max_change does nothing" in line for line in said)


@pytest.mark.parametrize("method, more, kind", [("fedbr", dict(m=1), "images"), ("fedmix", {}, "images"),
                                                ("mkmmd", dict(exchange="up", mmd_batch=8), "features")])
def test_samples_leave_a_site_only_where_it_allows_it(hospitals, tmp_path, method, more, kind):
    nodes = nodes_that_allow(hospitals, tmp_path, kind, but="inked")
    says(lambda: deploy(hospitals, tmp_path, plan_of(method, 1, **more), nodes, public=hospitals/"blended"),
         f"site 'inked' says: the method {method!r} sends {kind} of this site", f"--allow {kind}")


HELLOS = [
    (dict(name=3), "of itself"), (dict(name="optical"), "'optical'"), (dict(role="boss"), "role"),
    (dict(role="target", sizes=dict(target=24)), "targets"), (dict(samples=10**400), "samples"),
    (dict(sizes=dict(train=0)), "no training"), (dict(code=dict(torch="1.0")), "other code"), (dict(more=1), "more"),
    (dict(classes=["class 0", "class nine"]), "class nine"), (dict(shape=[2**20]*3), "shape"),
    (dict(error="\x1b[2J it is\nlost"), "lost")]


@pytest.mark.parametrize("change, part", HELLOS, ids=str)
def test_what_a_site_says_of_itself_is_checked(hospitals, tmp_path, change, part):
    def alter(asked, node, payload, said):
        if (asked, node) != ("hello", NUMBER["inked"]): return
        inside = change.keys() & said["looks"].keys()
        (said["looks"] if inside else said).update(change)
    with pytest.raises(fdgnb.FdgnbError) as error: deploy(hospitals, tmp_path, plan_of("fedavg", 1), after=alter)
    assert "inked" in str(error.value) and part in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize("plan, spec, part", [
    (plan_of("fedka", 1), {}, "unlabeled samples of the target"),
    (plan_of() | dict(target="inked"), {}, "target='inked'"),
    (plan_of(), dict(sites=[*NUMBER, "other"]), "no answer from other"),
    (plan_of(load=dict(classes=["class 0", "clas 1"])), {}, "'clas 1'")])
def test_what_a_deployment_cannot_do_is_said_before_the_first_round(hospitals, tmp_path, plan, spec, part):
    says(lambda: deploy(hospitals, tmp_path, plan, **spec), part)


def test_a_site_writes_into_its_own_folder_alone(hospitals, tmp_path):
    _, grid, _ = deploy(hospitals, tmp_path, plan_of("fedavg", 1))
    node, content = next((node, content) for asked, node, content in grid.sent if asked == "train")
    payload, about = unpack(content)
    for run in "../../tmp/x", "..", "", None, "/tmp":
        about["told"]["run"] = run
        number = grid.push(Message(pack(payload, about), node, "train"))
        assert "the server calls the run" in unpack(grid.replies[number].content)[1]["error"]


def test_the_server_s_app_leaves_one_line_or_a_sign_that_it_is_done(hospitals, tmp_path):
    nodes, out = nodes_of(hospitals, tmp_path), tmp_path/"server"
    spec, plan = dict(sites=[*NUMBER], out=str(out), wait=0, timeout=1), json.dumps(plan_of("fedavg", 1))
    def submit(nodes):
        run_config = {"fdgnb": plan, "fdgnb-server": json.dumps(spec)}
        deployment.app(Grid(site.app, nodes, dict(fdgnb=plan)), Context(1, 0, {}, RecordDict(), run_config))
    with pytest.raises(SystemExit): submit({})
    assert (out/"failed.txt").read_text().startswith("no answer from blended") and not (out/"done.txt").exists()
    submit(nodes)
    assert (out/"done.txt").exists() and not (out/"failed.txt").exists()
