"""A deployment of real processes with TLS and keys, and its outages: `make test-flower`, for it takes minutes.

Its final bits are those of the run over the joined folders with the same absences."""
import os, re, signal
import pytest
import torch
import fdgnb

if os.environ.get("FDGNB_FLOWER") != "1": pytest.skip("minutes: make test-flower", allow_module_level=True)
from deployed import Deployment, kill_all
from faults import note
from hospitals import write_hospitals

NAMES = "cluttered inked rendered".split()
OPTIONS = dict(size=16, lr=.05, batch_size=8, eval_every=0)
GIVEN = "--target none --rounds 4 --hyper size=16 --lr .05 --batch-size 8 --eval-every 0".split()
ABSENT = re.compile(r"round (\d+) goes on without client '(\w+)', asked for 'train'")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    "Three sites of 60 images, and the server."
    folder = tmp_path_factory.mktemp("three")
    deployment = Deployment(folder/"places", write_hospitals(folder, 60, NAMES), NAMES, timeout=90, wait=150)
    try:
        deployment.start_server().wait_for("the server is ready")
        yield deployment
    finally: kill_all()


def last_line(started):
    "What a command says at its end, once it has failed."
    assert started.end() == 1, started.text()[-3000:]
    return [line for line in started.text().splitlines() if line.startswith("error: ")][-1]


def missed(run, name, round):
    "Why a site was absent in a round that has ended, and who was there."
    took = run.wait_for(rf"round {round} of 4: ([\d.]+) s, .*; (.*)")
    why = re.search(rf"round {round} goes on without client '{name}', asked for 'train': (.*)", run.text())
    return f"{why[1] if why else 'it was not absent'}; the round took {took[1]} s, with {took[2]}"


def test_a_run_with_outages_is_that_of_the_joined_folders_without_who_was_absent(there, tmp_path):
    for name in NAMES:
        if name not in there.sites: there.start_site(name)
    sites, plays = there.sites, []
    run = there.submit("scaffold", "out", *GIVEN)

    sites["cluttered"].wait_for("round 2, .* for train")
    sites["cluttered"].kill()
    there.start_site("cluttered")
    note("a node killed (-9) in mid-round and restarted", "the round goes on without it, it is back in a later one",
         missed(run, "cluttered", 2))

    sites["inked"].wait_for("round 3, .* for train")
    sites["inked"].signal(signal.SIGSTOP)
    there.server.kill()
    said = last_line(run)
    plays.append(run.text())
    sites["inked"].signal(signal.SIGCONT)
    there.start_server().wait_for("the server is ready")
    run = there.submit("scaffold", "out", *GIVEN)
    note("the SuperLink killed (-9) and restarted", "the run ends in one line; the same command goes on",
         f"{said}; {run.wait_for('goes on after round .*')[0]}")

    sites["rendered"].wait_for("round 4, .* for train")
    sites["rendered"].signal(signal.SIGSTOP)
    note("a node that stops (SIGSTOP) and never comes back", "the round ends with those who answered, and says so",
         missed(run, "rendered", 4))
    sites["rendered"].kill()
    assert run.end() == 0, run.text()[-3000:]
    plays.append(run.text())

    kept = [max(i for i, said in enumerate(plays) if f"round {r} of 4: " in said) for r in range(1, 5)]
    absent = sorted({(int(r), k) for i, said in enumerate(plays) for r, k in ABSENT.findall(said)
                     if kept[int(r) - 1] == i})
    serial = fdgnb.fit("scaffold", there.data, "none", 4, progress=False, drops=tuple(absent), **OPTIONS)
    loaded = fdgnb.load(there.at_server/"out")
    state = loaded.model.state_dict()
    is_same = all(torch.equal(v, state[k]) for k, v in serial.model.state_dict().items())
    note("all of these in one run of scaffold", "the bits of the serial run with the same absences",
         f"absent {', '.join(f'{k} in {r}' for r, k in absent)}: {'equal' if is_same else 'other'} bits")
    assert is_same and (4, "rendered") in absent and len(loaded.history)
