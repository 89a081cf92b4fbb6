"""The net under every change: short runs of all methods, and what came of each, kept in tests/digests.json.

    python tests/digests.py                the runs whose version was raised, and new ones, into the file
    python tests/digests.py fdse           all runs that fdse is part of, or the run of that label
    python tests/digests.py --commit HEAD  also name the commit that `make same` compares with
    python tests/digests.py --bits         a digest of every tensor of every run as JSON, for `make same`

Of each tensor the file has how far it moved from its start, and the sum of that move under fixed random signs.
The numbers of a run change only where BEHAVIOR, or the version of a method in it, was raised and CHANGELOG.md
has a line that says why; the settings of a run only with a line such as "- run fedavg momentum: why".
"""
import argparse, copy, hashlib, json, math, os, re, subprocess, sys, tempfile, zlib
os.environ.setdefault("OMP_NUM_THREADS", "1")
from collections import OrderedDict
from pathlib import Path
import torch
from torch import nn
import fdgnb
import fdgnb.core
import fdgnb.models
from fdgnb import Dataset, Domain
from fdgnb.core import generator
from fdgnb.federation.compose import METHODS

HERE = Path(__file__).resolve().parent
FILE, CHANGELOG = HERE/"digests.json", HERE.parent/"CHANGELOG.md"
CLOSE = 1e-4                                             # how near another processor comes, and must
ROUGH = {"dse": .1, "fdse released": .01}                # of runs in which rounding grows; `make same` compares bits
FLOOR, LEAST = 2e-7, 1e-7                                # rounding: a share of a tensor's length, and at least

# -------------------------------------------------------------------------------------------- what is run
USUAL = dict(target="t", rounds=2, lr=.05, batch_size=8, seed=3, backbone="bars", workers=1, progress=False)
ADAM = dict(optimizer="adam", keep_optimizer=True, lr=2e-3, weight_decay=.01)
SGD = dict(momentum=.9, weight_decay=1e-2, keep_optimizer=True, lr=.02)
DEEP = dict(rounds=1, local_steps=1, lr=.01, weight_decay=.01)            # with kinks: one step
ALEXNET = DEEP | dict(backbone="alexnet_bn", side=64, batch_size=16)
KA = dict(mmd_batch=8, votes=20)
FDSE = dict(lam=5., tau=.1, adapt_lr=30.)
SETTINGS = dict(disentangler=SGD, fdann=SGD, mkmmd=ADAM, fdan=ADAM, voting=ADAM, fedka=SGD, moon=dict(lr=.02),
                fedcm=dict(lr=.1), fdse=dict(adapt="every"))
# what makes a method small, or its effect large; of `consistency` and `similarity` without `dse`, these do nothing:
# the sums with `dse` test them
HYPER = dict(
    budget=dict(S=14), fedsb=dict(S=14), subsample=dict(samples=14), mkmmd=dict(mmd_batch=8),
    fdan=dict(mmd_batch=8), voting=dict(votes=20), fedka=KA, fedadg=dict(adg_noise=8),
    fedsr=dict(z_dim=16, cmi=.05), vhl=dict(vhl_n=48), dann=dict(dann_lam=.3, dann_width=16),
    fediir=dict(iir_gamma=.1), tent=dict(tent_lr=.3, tent_batch=16), fedprox=dict(mu=5.), feddyn=dict(alpha=1.),
    fdse=FDSE, consistency=dict(lam=5.), similarity=dict(tau=.1, adapt_lr=30.), fedmix=dict(M=3),
    elcfs=dict(elcfs_share=.2, elcfs_sent=.5), arfl=dict(reg=.2), groupdro=dict(eta_q=5.))
VARIANTS = {                                             # label: method, settings and hyper-parameters
    "fedavg momentum": ("fedavg", SGD),
    "fedavg adam": ("fedavg", ADAM),
    "fedavg in-domain": ("fedavg", dict(target=None)),
    "fedavg two targets": ("fedavg", dict(target=["c", "t"])),
    "fedavg lda": ("fedavg", dict(target=None, partition=("lda", 4, .5), per_round=2, drop=.2, rounds=3,
                                    drop_last=True)),
    "fedavg split": ("fedavg", dict(partition=("split", 2), batch_size=16, client_weights="uniform", limit=32)),
    "fedavg flip": ("fedavg", dict(augment="flip")),
    "fedavg augmented": ("fedavg", dict(augment="ga", normalize="imagenet")),
    "fedavg clip": ("fedavg", dict(clip=.5, lr_decay=.9, lr_drops=(.5,))),
    "fedavg decay": ("fedavg", dict(lr_decay=.5, local_epochs=2, drop_last=True)),
    "fedavg steps": ("fedavg", dict(local_steps=4, drops=((2, "b"),), fractions=(.6, .2, .2), eval_train=1)),
    "fedavg cnn2": ("fedavg", DEEP | dict(backbone="cnn2")), "fedavg alexnet": ("fedavg", ALEXNET),
    "fedsb released": ("fedsb", dict(S=14, variant="released")),
    "ga released": ("ga", dict(variant="released")),
    "ga clients": ("ga", dict(partition=("split", 2), batch_size=16, per_round=4, rounds=3)),
    "fedka released": ("fedka", ADAM | KA | dict(variant="released")),
    "fedka up": ("fedka", ADAM | KA | dict(exchange="up")),
    "fedka kept": ("fedka", KA | dict(critic="kept", target_samples=24)),
    "fedbr released": ("fedbr", dict(variant="released")),
    "fedbr mixture": ("fedbr", dict(pseudo="mixture")),
    "fdse released": ("fdse", dict(variant="released")),
    "fdse v1": ("fdse", dict(penalty="v1", new_eraser="initial", new_statistics="target")),
    "fdse AC": ("fdse", dict(tau=0.)),
    "fdse cnn2": ("fdse", DEEP | dict(backbone="cnn2")),
    "partialfed adaptive": ("partialfed", dict(strategy="adaptive", gate_lr=10.)),
    "fednova momentum": ("fednova", dict(momentum=.9, mu=.1, lr=.02)),
    "scaffold some": ("scaffold", dict(partition=("split", 2), batch_size=16, per_round=4, rounds=3)),
    "feddyn some": ("feddyn", dict(alpha=1., partition=("split", 2), batch_size=16, per_round=4, rounds=3)),
    "feddecorr released": ("feddecorr", dict(variant="released")),
    "moon projected": ("moon", dict(lr=.02, project=16)),
    "am released": ("am", dict(variant="released")), "elcfs released": ("elcfs", dict(variant="released")),
    "harmofl released": ("harmofl", dict(variant="released")),
    "fedsr released": ("fedsr", dict(z_dim=16, cmi=.05, variant="released")),
    "ccst single": ("ccst", dict(ccst_style="single", ccst_k=1, ccst_alpha=.5)),
    "dsbn nearest": ("dsbn", dict(answer="nearest")), "fedbn initial": ("fedbn", dict(unseen="initial")),
    "bnstats prior": ("bnstats", dict(prior=16.)),
    "bnstats batches": ("bnstats", dict(many=300, rounds=1, local_steps=2)),     # the target takes more than one
}
SUMS = """ga+rsc am+ga ga+scaffold fedprox+ga fedbr+mixup subsample+uniform disentangler+mkmmd
    disentangler+voting dse+consensus+similarity dse+similarity dse+consistency+similarity
    fedbn+bnstats tent+dsbn fedsb+ga fdse+ga fedcm+fedbr+mixup fedbn+tent fedadam+fedcm
    dse+consistency+similarity+ga labelsmoothing+budget+uniform fedbr+ga noeval+fedsb
    fedprox+fedbr fedprox+moon fedbr+moon fedprox+fednova fednova+moon ditto+fedbr fdse+ditto fedntd+moon
    fedgma+moon fedadam+moon fdse+moon fdse+fedadam fdse+fedntd fedheal+fedntd fedntd+feddecorr
    fdse+feddecorr fedcm+feddyn fedadam+fedasam fedadam+fedyogi fedbn+lgfedavg fedbr+fedsb fedbr+fedka
    scaffold+fedprox scaffold+feddyn fedprox+groupdro ga+fedka fedsam+fedprox""".split()    # ends: shared names


def of_sum(method):
    "The hyper-parameters of a sum: those of its summands, each under its own name."
    own = {f"{part}.{k}": v for part in method.split("+") for k, v in HYPER.get(part, {}).items()}
    return dict(hyper=own) if own else {}


OURS = [n for n in METHODS.names() if METHODS.get(n).__module__.startswith("fdgnb.")]
ALONE = {n: (n, SETTINGS.get(n, {}) | HYPER.get(n, {})) for n in OURS}
RUNS = ALONE | VARIANTS | {n: (n, of_sum(n)) for n in SUMS}
EXACT = {"fdse alexnet": ("fdse", ALEXNET | dict(padding="half"))}     # too rough for another processor: bits only


def chain(**layers):
    return nn.Sequential(OrderedDict(layers))


def network(n_classes, in_channels=3):
    "Two convolutions and a hidden layer, each with BatchNorm; smooth, so that rounding stays small."
    def conv(n, m, **drop):
        layer = nn.Conv2d(n, m, 3, padding=1, bias=False)
        return chain(conv=layer, bn=nn.BatchNorm2d(m), act=nn.Tanh(), **drop, pool=nn.AvgPool2d(2))
    drop = fdgnb.models.Dropout(.2, channels=True)
    features = chain(conv1=conv(in_channels, 8), conv2=conv(8, 12, drop=drop), flat=nn.Flatten())
    hidden = chain(fc=nn.Linear(192, 20, bias=False), bn=nn.BatchNorm1d(20))
    head = chain(fc1=hidden, fc2=nn.Linear(20, n_classes))
    return fdgnb.models.Net("bars", features, head, 192, n_classes, in_channels)


def data(side=28, n=40, classes=4, more=4):
    "Three noisy sources and a target of bright bars, the same on every machine."
    out = {}
    for i, name in enumerate(("a", "b", "c", "t")):
        g, y = generator(7, client=name), torch.arange(n + more*i) % classes
        x = torch.randint(0, 180, (len(y), 3, side, side), generator=g)
        for j, c in enumerate(y.tolist()):
            x[j, i % 3, :, side*c//classes:side*(c + 1)//classes] += 60
        out[name] = Domain(name, x.to(torch.uint8), y)
    return Dataset("bars", out, list("0123"[:classes]), defaults=dict(backbone="cnn2"))


class Start:
    "A callback that keeps what stood in the states before the first round."
    def start(self, run):
        self.server = copy.deepcopy(run.fed.server.state)
        self.clients = {c.id: copy.deepcopy(c.state) for c in run.fed.clients}

    def round(self, run, rows): pass
    def end(self, run): pass


def play(label):
    "The run of a label, and its `Start`."
    if "bars" not in fdgnb.models.MODELS: fdgnb.models.add_backbone("bars", network, (3, 16, 16))
    method, own = (RUNS | EXACT)[label]
    given, start = USUAL | own, Start()
    small = data(given.pop("side", 16), n=given.pop("many", 20), more=8)                # no batch is tiny
    return fdgnb.fit(method, small, callbacks=[start], **given), start


# -------------------------------------------------------------------------------------- what came of a run
def by_key(states):
    "States {who: {key: value}} as {key: {who: value}}."
    keys = sorted({k for s in states.values() for k in s})
    return {k: {w: s[k] for w, s in states.items() if k in s} for k in keys}


def kept(run):
    """All that a run keeps: {(owner, key): {who: value}}.

    Owners: the server, the clients, and the networks that the clients and an unseen one would be sent."""
    clients = run.fed.clients
    own = {c.id: run.model_of(c.id).state_dict() for c in clients}
    found = dict(server=by_key({"server": run.fed.server.state}), clients=by_key({c.id: c.state for c in clients}),
                 models=by_key(own), unseen=by_key({"unseen": run.model_of().state_dict()}))
    return {(owner, k): by for owner, entries in found.items() for k, by in entries.items()}


def hashed(v):
    "The bytes of a tensor, hashed."
    raw = v.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw, digest_size=16).digest()


def bits(label):
    "A digest of every tensor that a run keeps, and of its history and ledger: {name: text}."
    run, _ = play(label)
    text = lambda v: hashed(v).hex() if torch.is_tensor(v) else repr(v)
    out = {f"{owner} {k} of {who}": text(v) for (owner, k), by in kept(run).items() for who, v in by.items()}
    rows = [tuple(r) for r in run.history.itertuples(index=False)]
    return out | {"history": repr(rows), "ledger": repr(sent(run))}


def sent(run):
    "Bytes that a run sent: {'down model': n, ...}."
    total = run.ledger.groupby(["direction", "kind"]).bytes.sum()
    return {" ".join(k): int(n) for k, n in total.items()}


def flat(v):
    "A number or a tensor as a vector of float64, what is not a number as 0; None for words and lists."
    if not torch.is_tensor(v):
        if not isinstance(v, (bool, int, float)): return None
        v = torch.tensor(float(v), dtype=torch.float64)
    return v.detach().double().flatten().nan_to_num()


def start_of(v, own, first):
    "What a vector began as: the nearest of what stood in its place, zero and first weights of its size."
    there = [own] if own is not None and own.shape == v.shape else []
    there += [torch.zeros_like(v), *(w for w in first if w.shape == v.shape)]
    return min(there, key=lambda w: float((v - w).norm()))


def move(name, by, before, first):
    """[length of the move of one entry, its sum under random signs, the length of the entry itself].

    by: {who: value}, taken together; before: what stood there. None of words and lists."""
    now = {who: flat(v) for who, v in by.items()}
    if any(v is None for v in now.values()): return None
    moves = [v - start_of(v, flat(before.get(who)), first) for who, v in sorted(now.items())]
    d, rng = torch.cat(moves), torch.Generator().manual_seed(zlib.crc32(name.encode()))
    signs = torch.randint(0, 2, (len(d),), generator=rng).double()*2 - 1
    return [float(d.norm()), float(d @ signs), float(torch.cat(list(now.values())).norm())]


def digest(label):
    """What is kept of a run: moves {owner: {key: numbers}}, losses {kind: numbers}, bytes.

    The networks that are sent move from the server's model as it is, so of most methods not at all."""
    run, start = play(label)
    server = run.fed.server.state
    first = [flat(v) for k, v in start.server.items() if k.startswith("model.")]
    out = dict(server={}, clients={}, models={}, unseen={})
    for (owner, k), by in kept(run).items():
        if owner == "server": before = {"server": start.server.get(k)}
        elif owner == "clients": before = {who: start.clients[who].get(k) for who in by}
        else: before = dict.fromkeys(by, server.get(f"model.{k}", start.server.get(f"model.{k}")))
        found = move(f"{owner} {k}", by, before, first)
        if found: out[owner][k] = found
    losses = run.history[run.history.metric == "loss"]
    out["losses"] = {" ".join(k): g.value.tolist() for k, g in losses.groupby(["point", "split"])}
    return out | dict(gains=gains(losses), bytes=sent(run))


def gains(losses):
    "How far adaptation moved the target's loss, by round."
    of = losses[losses.split == "target"].groupby(["point", "round"]).value.mean()
    return [float(of["adapted", r] - of["aggregated", r]) for point, r in of.index if point == "adapted"]


# ------------------------------------------------------------------------------ the file, and its rules
def versions(method):
    "{'loop': BEHAVIOR, part: its version} of a method or a sum."
    out = {"loop": getattr(fdgnb.core, "BEHAVIOR", 1)}                    # the base may lack it
    for name in method.split("+"):
        cls = METHODS.get(name)
        parts = getattr(cls, "parts", None) or {name: cls}
        out |= {k: getattr(c, "version", 1) for k, c in parts.items()}
    return out


def settings(label):
    "The settings of a run as JSON gives them back."
    return json.loads(json.dumps(RUNS[label][1]))


def rounded(v):
    "Numbers as the file has them: six digits."
    if isinstance(v, dict): return {k: rounded(w) for k, w in v.items()}
    if isinstance(v, list): return [rounded(w) for w in v]
    return v if isinstance(v, int) else float(f"{v:.6g}")


def rounding(found):
    "How far an entry may seem to move by rounding alone."
    return FLOOR*found[2] + LEAST


def entry_of(label, found):
    "A run as it stands in the file: of a move not the length of the entry, of networks only what moved."
    moves = {o: {k: v[:2] for k, v in found[o].items()} for o in ("server", "clients")}
    moves |= {o: {k: v[:2] for k, v in found[o].items() if v[0] > rounding(v)} for o in ("models", "unseen")}
    return dict(given=settings(label), versions=versions(RUNS[label][0])) | rounded(found | moves)


def near(a, b, least, close=CLOSE):
    "Whether two lists of numbers are as near as another processor comes."
    alike = lambda x, y: abs(x - y) <= close*abs(y) + least or (math.isnan(x) and math.isnan(y))
    return len(a) == len(b) and all(map(alike, a, b))


def lone(new, old):
    "Entries of the server's and the clients' states that only one of two digests has: names may change."
    return sorted(f"{o} {k}" for o in ("server", "clients") for k in new[o].keys() ^ old[o].keys()
                  if not (o == "server" and k.startswith("model.")))


def differences(new, old, label=None):
    "How a digest of a label differs from the file's, by more than another processor may: lines."
    out, close = [], ROUGH.get(label, CLOSE)
    for owner in ("server", "clients", "models", "unseen"):
        shown = new[owner].keys() if owner in ("models", "unseen") else new[owner].keys() & old[owner].keys()
        for k in sorted(shown):
            far, signed, _ = found = new[owner][k]
            was, before = old[owner].get(k, (0., 0.))
            most = close*was + rounding(found)
            if abs(far - was) > most: out.append(f"{owner} {k} moved by {far:.6g}, not {was:.6g}")
            elif abs(signed - before) > 2*most: out.append(f"{owner} {k} moved as far, but elsewhere")
    alone = {k for k in new["server"].keys() ^ old["server"].keys() if k.startswith("model.")}
    alone |= old["models"].keys() - new["models"].keys()
    out += [f"{k} is new or gone" for k in sorted(alone)]
    for k in sorted(new["losses"].keys() | old["losses"].keys()):
        a, b = new["losses"].get(k, []), old["losses"].get(k, [])
        if not near(a, b, CLOSE/100, close): out.append(f"the losses ({k}) are {rounded(a)}, not {b}")
    if not near(new["gains"], old["gains"], LEAST*20):
        out.append(f"adaptation moves the loss by {rounded(new['gains'])}, not {old['gains']}")
    if new["bytes"] != old["bytes"]: out.append(f"the bytes sent are {new['bytes']}, not {old['bytes']}")
    return out


def what_to_do(label, old, found):
    "What a test says of a run that differs."
    return "\n  ".join([f"{label} computes something else than {old['versions']}:", *found[:6]]) + (
        "\nUndo the change; or, where it is meant, raise the version of what changed by one, add a line like "
        f"'- fedprox 2: why' to CHANGELOG.md, and run: python tests/digests.py {label!r}")


def load():
    "The file: {'commit': ..., 'runs': {label: ...}}."
    return json.loads(FILE.read_text()) if FILE.exists() else dict(commit="", runs={})


def dump(whole):
    "Write the file, a line a run."
    line = lambda v: json.dumps(v, separators=(",", ":"))
    runs = ",\n".join(f"{line(k)}: {line(whole['runs'][k])}" for k in RUNS if k in whole["runs"])
    FILE.write_text(f'{{"commit": {line(whole["commit"])},\n"runs": {{\n{runs}\n}}}}\n')


def is_due(label, old, names):
    "Whether a run is named, by its label or a method in it, is new, or has other versions or settings than on file."
    now = versions(RUNS[label][0])
    if {label, *now, *label.split("+")} & {*names}: return True
    return old is None or (old["given"], old["versions"]) != (settings(label), now)


def find_unsaid(label, old, found):
    "What has to be done before the line of a run may change: a raised version, or a line of CHANGELOG.md."
    if old is None: return []
    now, changelog = versions(RUNS[label][0]), CHANGELOG.read_text() if CHANGELOG.exists() else ""
    meant = [f"{k} {v}" for k, v in now.items() if v != old["versions"].get(k, v)]
    if old["given"] != settings(label): meant.append(f"run {label}")
    differ = [] if meant else differences(found, old, label)
    if differ: return [what_to_do(label, old, differ)]
    return [f"CHANGELOG.md has no line '- {line}: why'" for line in meant
            if not re.search(rf"^- {re.escape(line)}: \S", changelog, re.M)]


def write(names, commit):
    "Make the runs that are due and write the file, or say why not: the exit status."
    whole, wrong = load(), []
    for label in RUNS:
        old = whole["runs"].get(label)
        if not is_due(label, old, names): continue
        found = digest(label)
        unsaid, new = find_unsaid(label, old, found), entry_of(label, found)
        print("refused" if unsaid else "made", label, flush=True)
        is_near = old and old["given"] == new["given"] and not differences(found, old, label) and not lone(found, old)
        whole["runs"][label] = old | dict(versions=new["versions"]) if is_near else new
        wrong += unsaid
    for line in dict.fromkeys(wrong): print(line)
    if wrong: return 1
    if commit: whole["commit"] = git("rev-parse", "--short=12", commit).strip()
    dump(whole)
    return 0


# ------------------------------------------------------------------------ the same bits as at a commit
def git(*args):
    "What a git command prints."
    call = ["git", "-C", str(HERE.parent), *args]
    return subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout


def all_bits(labels):
    "{label: versions and bits, or the error} of some runs."
    out = {}
    for label in labels or RUNS | EXACT:
        try: out[label] = dict(versions=versions((RUNS | EXACT)[label][0]), bits=bits(label))
        except Exception as e: out[label] = dict(error=f"{type(e).__name__}: {e}")      # a method not yet there
    return out


def compared(here, base):
    "(what is said of a run at two commits, whether that is a failure)."
    if "error" in here: return f"fails: {here['error']}", True
    if "error" in base: return f"does not run at the base: {base['error']}", False
    a, b = here["bits"], base["bits"]
    differ = [k for k in sorted(a.keys() & b.keys()) if a[k] != b[k]]
    differ += [k for k in sorted(a.keys() ^ b.keys()) if k.startswith(("models", "unseen", "server model."))]
    if not differ: return "", False
    higher = [f"{k} {v}" for k, v in here["versions"].items() if v != base["versions"].get(k, v)]
    meant = f", as is meant by {', '.join(higher)}" if higher else ""
    return f"{len(differ)} of {len(a)} entries differ, as {differ[0]}{meant}", not higher


def start_bits(root, labels):
    "A process that prints the bits of runs with the package that lies in the folder `root`."
    call = [sys.executable, __file__, "--bits", *labels]
    return subprocess.Popen(call, cwd=root, env=os.environ | dict(PYTHONPATH=str(root)), stdout=subprocess.PIPE)


def same(base, labels):
    "Run everything here and at a commit, side by side, and compare bits: the exit status."
    base = base or load()["commit"]
    with tempfile.TemporaryDirectory() as there:
        tree = Path(there, "tree")
        git("worktree", "add", "--detach", str(tree), base)
        try:
            both = [start_bits(root, labels) for root in (HERE.parent, tree)]
            here, old = (json.loads(p.communicate()[0]) for p in both)
        finally: git("worktree", "remove", "--force", str(tree))
    failures = 0
    for label in here:
        said, failed = compared(here[label], old[label])
        failures += failed
        if said: print(f"{label}: {said}")
    both_ran = sum("bits" in here[k] and "bits" in old[k] for k in here)
    print(f"{both_ran} of {len(here)} runs compared with {base}, {failures} failures")
    return int(failures > 0 or both_ran == 0)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bits", action="store_true", help="print bits as JSON instead")
    p.add_argument("--same", nargs="?", const="", metavar="COMMIT", help="compare bits with a commit")
    p.add_argument("--commit", default="", help="the commit that `make same` compares with from now on")
    p.add_argument("labels", nargs="*", help="labels or methods")
    a = p.parse_args()
    torch.set_num_threads(1)
    if a.same is not None: sys.exit(same(a.same, a.labels))
    if a.bits: print(json.dumps(all_bits(a.labels)))
    else: sys.exit(write(a.labels, a.commit))
