"""Digests of short runs, without names: what must not change when the code is moved.

`python tests/digests.py` writes tests/digests.json; made on commit 991c53c. Runs that are named are made
anew, and keep the machine that made them. A run's digest is over the bytes
of the tensors of the global model and of the network that every client and the unseen client would hold,
sorted, without keys; beside it stand the aggregated model's accuracies and, for another machine, a norm.
"""
import argparse, hashlib, json, platform, sys
from pathlib import Path
import torch
import fdgnb
from fdgnb import Dataset, Domain
from fdgnb.core import generator

FILE = Path(__file__).with_suffix(".json")
ADAM = dict(optimizer="adam", keep_optimizer=True, lr=1e-3)
SGD = dict(momentum=.9, weight_decay=5e-4, keep_optimizer=True, lr=.01)
RUNS = {                                             # label -> method, settings and hyper-parameters
    "fedavg": ("fedavg", {}), "fedavg momentum": ("fedavg", SGD), "fedavg adam": ("fedavg", ADAM),
    "fedavg in-domain": ("fedavg", dict(target=None)),
    "fedavg lda": ("fedavg", dict(target=None, partition=("lda", 4, .5), per_round=2, drop=.2, rounds=3)),
    "fedavg flip": ("fedavg", dict(augment="flip", clip=1., lr_decay=.9, lr_drops=(.5,))),
    "fedavg alexnet": ("fedavg", dict(backbone="alexnet_bn", side=64)),
    "labelsmoothing": ("labelsmoothing", {}), "budget": ("budget", dict(S=30)), "uniform": ("uniform", {}),
    "fedsb": ("fedsb", dict(S=30)), "fedsb released": ("fedsb", dict(S=30, variant="released")),
    "ga": ("ga", {}), "ga released": ("ga", dict(variant="released")), "fedsb+ga": ("fedsb+ga", dict(S=30)),
    "subsample": ("subsample", dict(samples=20)), "disentangler": ("disentangler", ADAM),
    "mkmmd": ("mkmmd", ADAM | dict(mmd_batch=16)),
    "fdann": ("fdann", ADAM), "fdan": ("fdan", ADAM | dict(mmd_batch=16)),
    "voting": ("voting", ADAM | dict(votes=20)),
    "fedka": ("fedka", ADAM | dict(mmd_batch=16, votes=20, target_samples=24)),
    "fedka released": ("fedka", ADAM | dict(variant="released", mmd_batch=16, votes=20)),
    "fedka up": ("fedka", ADAM | dict(exchange="up", mmd_batch=16, votes=20)),
    "fedka kept": ("fedka", dict(critic="kept", mmd_batch=16, votes=20)),
    "noeval": ("noeval", {}),
    "fedbr": ("fedbr", {}), "fedbr released": ("fedbr", dict(variant="released")),
    "fedbr mixture": ("fedbr", dict(pseudo="mixture")), "fedbr+ga": ("fedbr+ga", {}),
    "dse": ("dse", {}), "fdse": ("fdse", dict(adapt="every")),
    "fdse released": ("fdse", dict(variant="released")),
    "fdse v1": ("fdse", dict(penalty="v1", new_eraser="initial", new_statistics="target")),
    "fdse AB": ("dse+consensus+similarity", {}), "fdse AC": ("fdse", dict(tau=0.)),
    "fdse BC": ("dse+consistency+similarity", dict(shift=True, inner=False)),
    "fdse none": ("dse+similarity", dict(tau=None)), "fdse+ga": ("dse+consistency+similarity+ga", {}),
    "fdse alexnet": ("fdse", dict(backbone="alexnet_bn", side=64, lr=.002, batch_size=16)),  # .02: chaos
    "noeval+fedsb": ("noeval+fedsb", dict(S=30)),
    "local": ("local", {}), "lgfedavg": ("lgfedavg", {}), "fedbn": ("fedbn", {}), "dsbn": ("dsbn", {}),
    "ditto": ("ditto", {}), "partialfed": ("partialfed", {}),
    "partialfed adaptive": ("partialfed", dict(strategy="adaptive", gate_lr=1e3)),
    "moon": ("moon", {}), "fedntd": ("fedntd", {}), "feddecorr": ("feddecorr", {}),
    "feddecorr released": ("feddecorr", dict(variant="released")),
    "tent": ("tent", {}), "bnstats": ("bnstats", {}), "feddrop": ("feddrop", {}),
    "fedprox": ("fedprox", {}), "scaffold": ("scaffold", {}), "feddyn": ("feddyn", {}),
    "fednova": ("fednova", dict(momentum=.9, mu=.1)), "fedcm": ("fedcm", {}),
    "fedadam": ("fedadam", {}), "fedyogi": ("fedyogi", {}), "fedadagrad": ("fedadagrad", {}),
    "fedsam": ("fedsam", {}), "fedasam": ("fedasam", {}),
    "arfl": ("arfl", {}), "groupdro": ("groupdro", {}), "fedgma": ("fedgma", {}), "fedheal": ("fedheal", {}),
}


def data(side=28, n=40, classes=4):
    "Three noisy sources and a target of bright bars, the same on every machine."
    out = {}
    for i, name in enumerate(("a", "b", "c", "t")):
        g, y = generator(7, client=name), torch.arange(n + 4*i) % classes
        x = torch.randint(0, 180, (len(y), 3, side, side), generator=g)
        for j, c in enumerate(y.tolist()): x[j, i % 3, :, side*c//classes:side*(c + 1)//classes] += 60
        out[name] = Domain(name, x.to(torch.uint8), y)
    return Dataset("bars", out, list("0123"[:classes]), defaults=dict(backbone="cnn2"))


def hashed(v):
    "The bytes of a tensor, hashed."
    raw = v.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw, digest_size=16).digest()


def digest(label):
    "What is compared of one run: dict of digest, accuracies and norm."
    method, kw = RUNS[label]
    kw = dict(target="t", rounds=2, lr=.02, batch_size=8, seed=3, progress=False) | kw
    run = fdgnb.fit(method, data(kw.pop("side", 28)), **kw)
    who = [None, *(c.id for c in run.fed.clients)]
    states = run.fed.server.model, *(run.model_of(k).state_dict() for k in who)
    each = sorted(hashed(v) for s in states for v in s.values())
    h = run.history.query("metric == 'accuracy' and point in ('aggregated', 'adapted') "
                          "and split in ('val', 'test', 'target')")
    rows = h[["round", "client", "split", "point", "value"]].itertuples(index=False)
    floats = (v for v in run.model.state_dict().values() if v.is_floating_point())
    return dict(tensors=hashlib.blake2b(b"".join(each), digest_size=16).hexdigest(),
                norm=sum(v.double().square().sum().item() for v in floats)**.5,
                accuracies=[[int(r), c, s, p, v] for r, c, s, p, v in rows])


def machine():
    "What bits may depend on besides the code."
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    flags = next((l.split(":")[1].split() for l in lines if l.startswith("flags")), [])
    isa = sorted(f for f in flags if f.startswith(("avx", "amx", "fma", "sse4")))
    return dict(torch=torch.__version__, capability=torch.backends.cpu.get_cpu_capability(),
                arch=platform.machine(), isa=" ".join(isa))


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    p.add_argument("labels", nargs="*", help="these runs only")
    a = p.parse_args()
    torch.set_num_threads(1)
    made, differs, kept = {}, {}, json.loads(FILE.read_text()) if FILE.exists() else dict(runs={})
    for label in a.labels or RUNS:
        made[label] = digest(label)
        if a.check:
            differs[label] = [k for k, v in made[label].items() if kept["runs"][label][k] != v]
            said = "DIFFERS in " + ", ".join(differs[label]) if differs[label] else "equal"
            print(f"{label:20} {said}", flush=True)
    if a.check: sys.exit(any(differs.values()))
    if a.labels: made = kept["runs"] | {k: v | dict(machine=machine()) for k, v in made.items()}
    whole = dict(machine=kept["machine"] if a.labels else machine(), runs=made)
    FILE.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"{len(made)} runs, {FILE}")
