"""Faults of a deployment, made in real processes that share one SuperLink with TLS and keys.

First what is refused when sites meet, then one run of six rounds with a fault or two in each. Its final bits are those
of the serial run with the same absences."""
import os, re, shutil, time
import pytest
import fdgnb
from fdgnb.runs.checkpoints import load_checkpoint
from fdgnb.vectors import digest
from deployed import SLOW, Deployment, write_sites, kill_all
from faults import Disk, note, make_clock, write_other_code

pytestmark = SLOW


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    "Processes of tests end with them."
    yield
    kill_all()


NAMES = "cluttered inked rendered".split()
OPTIONS = dict(size=16, lr=.05, batch_size=8, eval_every=0)
GIVEN = "--target none --hyper size=16 --lr .05 --batch-size 8 --eval-every 0".split()
ABSENT = re.compile(r"round (\d+) goes on without client '(\w+)', asked for 'train'")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    "Three sites of 60 images, the server, and the sites' processes."
    folder = tmp_path_factory.mktemp("three")
    data = write_sites(folder/"hospitals", NAMES)
    d = Deployment(folder/"places", data, NAMES, timeout=120, wait=150)
    d.disk = Disk(d.folder/"at rendered"/"rendered-kept")
    d.server_disk = Disk(d.at_server/"full disk")
    d.start_server().wait_for("the server is ready")
    yield d
    for disk in (d.disk, d.server_disk): disk.close()


def last_line(run, code=1):
    "What a run says at its end, once it has failed."
    assert run.end() == code, run.text()[-3000:]
    return [line for line in run.text().splitlines() if line.startswith("error: ")][-1]


def serial(data, method, rounds, out, **more):
    return fdgnb.fit(method, data, "none", rounds, progress=False, out=out, **OPTIONS | more)


def final(out): return digest(load_checkpoint(out/"checkpoint.safetensors")[0]["server"])


def first_line(said, word): return next(line for line in said.splitlines() if word in line)


def test_who_is_not_let_in(there):
    "No TLS, a key that nobody registered, a key that is in use: none becomes a node."
    there.at("stranger").mkdir()
    there.call("key", "stranger", where=there.at("stranger"))
    shutil.copy(there.at_server/"hospitals/ca.crt", there.at("stranger"))
    plain = there.start_site("inked", "--insecure", log="plain")
    stranger = there.start_site("stranger", log="stranger", folder=there.data/"inked")
    there.start_site("inked").wait_for("SuperNode ID")
    second = there.start_site("inked", "--home", "second", log="second")
    for node, fault in (stranger, "an unregistered key"), (second, "two nodes with one key"):
        node.wait_for("does not take")
        note(fault, "the second is not taken, and says so" if node is second else "the node is not taken, and says so",
             first_line(node.text(), "does not take"))
        node.interrupt()
    assert plain.end() == 1
    note("no TLS against a TLS SuperLink", "the site's command ends in one line", plain.text().strip())
    assert "speaks TLS" in plain.text()


def test_another_authority(there, tmp_path):
    "A server that the site's certificate does not vouch for."
    there.call("federation", "other.toml", "inked", where=tmp_path)
    shutil.copy(tmp_path/"other/ca.crt", there.at("inked")/"other.crt")
    node = there.start_site("inked", "--ca", "other.crt", log="another authority")
    assert node.end() == 1
    note("a server with a certificate of another authority", "the site's command ends in one line", node.text().strip())
    assert "is not the one that other.crt vouches for" in node.text()


def test_what_is_refused_when_sites_meet(there):
    "Other code, other classes, the name of another site."
    for name in "inked", "rendered": there.ensure(name)
    path = os.pathsep.join([str(write_other_code(there.folder/"other code")), os.environ.get("PYTHONPATH", "")])
    there.start_site("cluttered", PYTHONPATH=path)
    run = there.submit("fedavg", "out-code", "--rounds", "1", *GIVEN)
    said = last_line(run)
    note("other code at a site", "the run ends before a round, naming the site and the version", said)
    assert "site 'cluttered' runs other code than the server (loop" in said
    there.sites["cluttered"].interrupt()

    other = there.folder/"other classes"/"cluttered"
    shutil.copytree(there.data/"cluttered", other)
    (other/"class 2").rename(other/"class nine")
    there.start_site("cluttered", folder=other)
    said = last_line(there.submit("fedavg", "out-classes", "--rounds", "1", *GIVEN))
    note("other classes at a site", "the run ends before a round, naming the site and the classes", said)
    assert "has other samples than" in said and "class nine" in said
    there.sites["cluttered"].interrupt()

    there.say_in_file("wait = 150", "wait = 60")
    liar = there.start_site("inked", at="cluttered", log="liar")
    run = there.submit("fedavg", "out-claim", "--rounds", "1", *GIVEN)
    said = last_line(run)
    note("two nodes claim one domain, the second with the key of another site",
         "the second is refused by the name of its key; the run waits for the missing site, and ends", said)
    assert "registered as 'cluttered' says that it is site 'inked'" in said
    there.say_in_file("wait = 60", "wait = 150")
    liar.interrupt()


def test_clocks_an_hour_apart(there, tmp_path):
    "Flower signs requests with the time and takes no other; the site's command says so."
    clock = make_clock(tmp_path)
    if not clock: return note("clocks an hour apart", "the site's command says so", "not tried: no compiler of C here")
    for seconds, where in (3600, "ahead"), (-3600, "behind"):
        clock["FDGNB_TEST_CLOCK"] = str(seconds)
        site = there.start_site("rendered", "--home", "clock", log=f"clock {where}", **clock)
        assert site.end() == 1
        note(f"a site's clock an hour {where}", "the site's command ends in one line", site.text().strip())
        assert "60 minutes ahead" in site.text() or "not yet valid" in site.text()


def serial_out(there, folder, method, rounds, **more):
    serial(there.data, method, rounds, folder/"serial", **more)
    return folder/"serial"


def again(there, out):
    "The same run, submitted once more."
    return there.submit("scaffold", out, "--rounds", "6", *GIVEN)


def missed(run, name, round):
    "Why a site was absent in a round, and the seconds of that round, once the round has ended."
    run.wait_for(rf"round {round} of 6: ")
    why = re.search(rf"round {round} goes on without client '{name}', asked for 'train': (.*)", run.text())
    took = re.search(rf"round {round} of 6: ([\d.]+) s, .*; (.*)", run.text())
    return f"{why[1] if why else 'it was not absent'}; the round took {took[1]} s, with {took[2]}"


def test_a_run_with_a_fault_in_every_round(there, tmp_path):
    "Killed, stopped, full, altered, gone: the bits of the serial run with the same absences."
    for name in NAMES: there.ensure(name)
    out = there.server_disk.folder/"out"
    run, plays = again(there, out), []

    there.asked("cluttered", 2)
    there.sites["cluttered"].kill()
    if there.disk.how: there.disk.fill()
    there.start_site("cluttered")
    note("a node killed (-9) in mid-round and restarted", "the round goes on without it, it is back in a later one",
         missed(run, "cluttered", 2))
    if there.disk.how:
        note(f"a full disk at a node ({there.disk.how})", "the round goes on without it, which says why",
             missed(run, "rendered", 2))
        there.disk.free()
    else: note("a full disk at a node", "the round goes on without it", "not tried: root, and no own file system")

    extra = there.data/"rendered"/"class 0"/"new.png"
    shutil.copy(next(extra.parent.glob("*.png")), extra)
    there.asked("inked", 3)
    there.sites["inked"].stop()
    time.sleep(20)
    there.sites["inked"].go_on()
    came = missed(run, "inked", 3)
    note("a node stopped (SIGSTOP) in mid-round, continued after 20 s", "nothing is lost", came)
    note("other data in a site's folder than when the run began",
         "rounds go on without it until the folder is restored", missed(run, "rendered", 3))
    extra.unlink()

    if there.server_disk.how:
        there.server_disk.fill()
        said = last_line(run)
        there.server_disk.free()
        note(f"a full disk at the server ({there.server_disk.how})",
             "the run ends in one line; the same command goes on from the last whole round", said)
        plays.append(run.text())
        run = again(there, out)
        note("... the same command after there is room", "goes on after round 3",
             run.wait_for("goes on after round .*")[0])

    there.asked("inked", 4)
    there.server.kill()
    said = last_line(run)
    plays.append(run.text())
    there.start_server().wait_for("the server is ready")
    run = again(there, out)
    came = run.wait_for("goes on after round .*")[0]
    note("the SuperLink killed (-9) and restarted", "the run ends in one line; the same command goes on",
         f"{said}; {came}")

    there.sites["inked"].wait_for("round 4, inked is asked for train", times=2)
    there.sites["inked"].stop()
    note("a node stopped (SIGSTOP) past the timeout", "the round ends at its timeout of 120 s with those who answered",
         missed(run, "inked", 4))
    there.sites["inked"].go_on()

    there.asked("cluttered", 5)
    there.sites.pop("cluttered").kill()
    note("a node that never comes back", "the round ends with those who answered, and says so; so do those after it",
         f"{missed(run, 'cluttered', 5)}; {missed(run, 'cluttered', 6)}")

    assert run.end() == 0, run.text()[-3000:]
    plays.append(run.text())
    absent = sorted({(int(r), k) for said in plays for r, k in ABSENT.findall(said) if counts(plays, said, int(r))})
    same = final(out) == final(serial_out(there, tmp_path, "scaffold", 6, drops=tuple(absent)))
    note("all of these in one run of scaffold", "the bits of the serial run with the same absences",
         f"absent {', '.join(f'{k} in {r}' for r, k in absent)}: {'equal' if same else 'other'} bits")
    assert same and (5, "cluttered") in absent and (4, "inked") in absent


def counts(plays, said, round):
    "Whether a round of this play is the one that was kept: the last play that ended it."
    line, later = f"round {round} of 6: ", plays[plays.index(said)+1:]
    return line in said and not any(line in s for s in later)
