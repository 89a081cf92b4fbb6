"""Random inputs, half of them meant to be valid: each is accepted, or refused in one line.

`make fuzz` runs 5,000 in two processes. Kinds: call (arguments of a run), setting, method (hyper-parameters
of all methods), partition, file (checkpoints, args.json, records, manifests of the cache), loader (files of
data sets), own (arguments of the loaders of own data), load, predict, export, adapt, run (methods of a run),
tune (fine-tuning), callback, grid, table and search. A case is (field, function to call).
"""
import bz2, collections, functools, gzip, multiprocessing, os, pickle, resource, shutil, signal, struct, sys
import tempfile, time, traceback, warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from pathlib import Path
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CI", "1")
os.environ["TQDM_DISABLE"] = "1"
import numpy as np
import torch
import fdgnb, fdgnb.experiments.grid, fdgnb.experiments.search, fdgnb.experiments.store, fdgnb.experiments.table
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image
from scipy.io import savemat
from fdgnb import Dataset, Domain, FdgnbError
from fdgnb.data.cache import cache_arrays
from fdgnb.data.partitions import PARTITIONS
from fdgnb.federation.compose import METHODS
from fdgnb.runs.records import load as load_record
from fdgnb.runs.setup import Federation
from fdgnb.settings import Settings, kind_of

draws = np.random.default_rng(0)
PATIENCE = 120                                   # seconds until an input counts as one that hangs
MOST = 600                                       # a run is played where no number is larger


def images(n, side=16): return draws.integers(0, 256, (n, 3, side, side), dtype=np.uint8)


def toy():
    "Three domains of small images; a local step per round and no scoring, where nothing else is said."
    domain = lambda k, n: Domain(k, torch.from_numpy(images(n)), torch.arange(n) % 3)
    domains = {k: domain(k, n) for k, n in zip("abc", (12, 9, 8))}
    usual = dict(backbone="cnn2", batch_size=4, local_steps=1, eval_every=0)
    return Dataset("toy", domains, ["x", "y", "z"], defaults=usual)


DATA = toy()

# ---- values

HOSTILE = [None, True, False, "", "x", "none", "x"*9999, "a\nb", "3", b"x", -1, 0, 1, 1.5, -0., 1e39, 1e308,
           2**31, 2**63, 10**30, 10**400, 10**5000, float("nan"), float("inf"), -float("inf"), 1j, [], (), {},
           [1], ["x"], [[]], [None], (1, "a"), ((1, "a"),), {"a": 1}, {1: 2}, {1, 2}, object(), len, int,
           torch, np.zeros(2), np.zeros(()), np.int64(3), np.float32(.5), np.float64("nan"), np.str_("sgd"),
           np.bool_(True), np.datetime64("2020"),
           torch.zeros(2), torch.tensor(1), range(3), Path("x"), "\ud800", "\0", "../x", 1e-320, -2**40]
hostile = st.one_of(st.sampled_from(HOSTILE), st.integers(), st.floats(), st.text(max_size=20))
plainly = lambda *values: st.sampled_from(values)
fraction = st.floats(.05, .95)
WELL = dict(
    backbone=plainly("cnn2", "mlp2", None), load=plainly(None, {}), size=plainly(None, 16),
    partition=st.deferred(lambda: partition(well=True)), augment=plainly("none", "flip"),
    fractions=plainly((.8, .1, .1), [.5, .25, .25], (1, 0, 0)), pretrained=plainly(False),
    lr_drops=plainly((), []), drops=plainly((), [[1, "a"]], ((1, "b"),)), proxy=plainly("noise"),
    target=plainly("c", ["b", "c"], None, "none", "own"), device=plainly("cpu", "auto", torch.device("cpu")),
    class_weights=plainly(None, "balanced", [1, 2, .5], {"x": 2.}),
    rounds=plainly(1, 2, np.int64(1), 1.), seed=st.integers(0, 2**40), out=plainly(None), scale=plainly(None),
    protocol=plainly(None), hyper=plainly(None, {}, {"lr": .1}), dataset=plainly(DATA),
    method=plainly("fedavg", "fedsb+ga"), engine=plainly("threads"), workers=plainly(None, 1, 2),
    progress=plainly(False, None), checkpoint_every=st.integers(1, 5), batch_size=st.integers(2, 9),
    lr=st.floats(1e-6, .5), dw=plainly(1, 3, 5), G=plainly(2, 4))


def well(name, f=None):
    "Values that a field should take."
    if name in WELL: return WELL[name]
    m, kind = f.metadata, kind_of(f)
    if m.get("choices"): return st.sampled_from(m["choices"])
    low = m.get("low") or 0
    if kind is bool: return st.booleans()
    if kind is int: return st.integers(low, low + 5)
    return st.floats(low, min(m.get("high") or low + 2, low + 2))


def either(name, f=None): return st.one_of(well(name, f), well(name, f), hostile)


# ---- cases of each kind

def small(values):
    "Whether no number among some values is too large for a round to be played."
    numbers = [v for v in values if isinstance(v, (int, float, np.number)) and v == v]
    return all(abs(v) <= MOST for v in numbers)


def trained(method, hyper, **call):
    "A round of a method where that is cheap, and only the setting up where a number is large."
    usual = dict(dataset=DATA, target="c", rounds=1) | call
    if small(hyper.values()): fdgnb.fit(method, **dict(progress=False) | usual, hyper=hyper)
    else: Federation(method, **usual, hyper=hyper)


CALL = ("rounds seed engine workers checkpoint_every progress protocol scale target dataset device out hyper "
        "method").split()


@st.composite
def call(draw):
    name = draw(st.sampled_from(CALL))
    value = draw(either(name))
    if name == "out" and isinstance(value, (str, Path)) and value:      # stays in a folder that is swept
        value = Path(box(), "out", str(value).lstrip("/.").replace("../", ""))
    given = dict(method="fedavg", dataset=DATA, target="c", rounds=1, progress=False) | {name: value}
    if name == "rounds" and not small([value]):
        return name, lambda: Federation("fedavg", DATA, "c", value)
    return name, lambda: fdgnb.fit(**given)


SETTINGS = {f.name: f for f in fields(Settings)}


@st.composite
def setting(draw):
    names = draw(st.lists(st.sampled_from(sorted(SETTINGS)), min_size=1, max_size=2, unique=True))
    hyper = {k: draw(either(k, SETTINGS[k]) if k == names[0] else well(k, SETTINGS[k])) for k in names}
    if draw(st.integers(0, 19)) == 0:
        odd = plainly("", "lrr", "x"*9999, "a\nb", 1, 1.5, None, (), True, float("nan"))
        key = draw(st.one_of(odd, st.text()))
        return "no name", lambda: Federation("fedavg", DATA, "c", 1, hyper={key: 1})
    return names[0], lambda: trained("fedavg", hyper)


@st.composite
def method(draw):
    name = draw(st.sampled_from([*METHODS.names(), "fedsb+ga", "fdse+subsample"]))
    cls = fdgnb.federation.compose.method_class(name)
    known = {f.name: f for f in fields(cls.Hyper)}
    if not known: return name, lambda: trained(name, {})
    names = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=2, unique=True))
    hyper = {k: draw(either(k, known[k]) if k == names[0] else well(k, known[k])) for k in names}
    scored = draw(plainly({}, {}, dict(eval_every=1)))
    return f"{name}.{names[0]}", lambda: trained(name, hyper, **scored)


ALPHA, CONVENTION = st.floats(1e-6, 1e6), plainly("hsu", "ones")
ARGUMENTS = dict(
    halves=(), split=(st.integers(1, 4),), lda=(st.integers(1, 5), ALPHA, CONVENTION, fraction),
    rotate=(st.floats(-90, 90),), turn=(st.integers(-45, 45), st.integers(1, 9), ALPHA, CONVENTION),
    load=(plainly("digits"),), chain=())


@st.composite
def partition(draw, well=False):
    name = draw(st.sampled_from([k for k in PARTITIONS.names() if k != "load" or not well]))
    if name == "chain": return "chain", *draw(st.lists(partition(well=well), min_size=1, max_size=2))
    own = ARGUMENTS["lda" if name == "dirichlet" else name]
    need = dict(lda=2, dirichlet=2, turn=1).get(name, len(own))
    args = [draw(s) for s in own[:draw(st.integers(need, len(own)))]]
    if not well:
        if args and draw(st.booleans()): args[draw(st.integers(0, len(args) - 1))] = draw(hostile)
        if draw(st.integers(0, 7)) == 0: args.append(draw(hostile))
        if draw(st.integers(0, 9)) == 0: name = draw(hostile)
    return name, *args


@st.composite
def partitions(draw):
    steps = draw(st.one_of(partition(well=True), partition(), partition()))
    name = steps[0] if isinstance(steps[0], str) and len(steps[0]) < 20 else "other"
    return name, lambda: Federation("fedavg", DATA, "c", 1, partition=steps)


# ---- damaged files

@functools.cache
def box():
    "A folder that is gone with the process."
    folder = tempfile.mkdtemp(prefix="fdgnb-fuzz-")
    import atexit
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def finished():
    "The folder of a finished run with its record."
    out = Path(box(), "finished")
    fdgnb.fit("fedavg", DATA, "c", 1, out=out, progress=False, eval_every=1).save()
    return out


@functools.cache
def entry():
    "The folder of an entry of the cache."
    os.environ["FDGNB_CACHE"] = str(Path(box(), "cache"))
    cache_arrays("fuzz", arrays)
    return Path(box(), "cache", "fuzz")


def arrays(): return dict(x=images(4), y=np.arange(4))


def encoded_png():
    "The bytes of an image."
    file = Path(box(), "image.png")
    Image.fromarray(images(1)[0].transpose(1, 2, 0)).save(file)
    return file.read_bytes()


@st.composite
def damaged(draw, whole):
    "Bytes with something done to them: nothing, cut, flipped, inserted, replaced, or something else."
    how = draw(st.sampled_from("none none cut flip insert digit other".split()))
    at = draw(st.integers(0, max(len(whole) - 1, 0)))
    more = draw(st.one_of(st.binary(max_size=20), st.sampled_from(OTHERS)))
    if how == "cut": return whole[:at]
    if how == "flip": return whole[:at] + bytes([whole[at] ^ 1 << draw(st.integers(0, 7))]) + whole[at + 1:]
    if how == "insert": return whole[:at] + more + whole[at:]
    old, new = draw(plainly(b"0", b"1", b"2")), draw(plainly(b"9", b"-", b"null", b"["))
    if how == "digit": return whole.replace(old, new, 1)
    return whole if how == "none" else more


OTHERS = [b"", b"\0"*99, b"{}", b"[]", b"null", b"3", b'"a"', b"{", b"[" * 20_000, b"\xff\xfe", b"PK\x03\x04",
          b"\x1f\x8b\x08", b"BZh9", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"MATLAB 5.0 MAT-file",
          b"a,b\n1", b"NaN", b'{"a": 1e999}', b"\x80\x04cos\nsystem\n", pickle.dumps({}), pickle.dumps([1]),
          gzip.compress(b"x"), bz2.compress(b"1 1:2\n")]


def again(folder, file, data, read):
    "A copy of a folder with one file damaged, read."
    target = Path(box(), "damaged")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    (target/file).write_bytes(data)
    return read(target)


@st.composite
def files(draw):
    what = draw(st.sampled_from("checkpoint args record history cache".split()))
    if what == "cache":
        file = draw(st.sampled_from(sorted(p.name for p in entry().iterdir())))
        if not (entry()/file).exists(): cache_arrays("fuzz", arrays)
        data = draw(damaged((entry()/file).read_bytes()))
        def read(): (entry()/file).write_bytes(data); cache_arrays("fuzz", arrays)
        return f"cache {file}", read
    names = dict(checkpoint=["checkpoint.safetensors"], args=["args.json"], record=["record.json"],
                 history=["history.csv", "ledger.csv"])[what]
    file = draw(st.sampled_from([n for n in names if (finished()/n).exists()] or ["record.json"]))
    data = draw(damaged((finished()/file).read_bytes()))
    fit = lambda out: fdgnb.fit("fedavg", DATA, "c", 1, out=out, progress=False, eval_every=1)
    def read(folder):
        run = load_record(folder)
        return run.history, run.ledger, run.sizes, run.args
    return file, lambda: again(finished(), file, data, fit if what in ("checkpoint", "args") else read)


def idx(a):
    "An array as MNIST's files hold it."
    return gzip.compress(bytes([0, 0, 8, a.ndim]) + struct.pack(f">{a.ndim}I", *a.shape) + a.tobytes())


def sets():
    "{data set: {file: bytes}}, small and whole."
    gray, y = draws.integers(0, 256, (20, 28, 28), dtype=np.uint8), np.arange(20, dtype=np.uint8) % 10
    mnist = {f"digit_five/{p}-{k}-ubyte.gz": idx(a) for p in ("train", "t10k")
             for k, a in (("images-idx3", gray), ("labels-idx1", y))}
    png, colored = encoded_png(), images(2, 32).reshape(2, -1)
    cifar = pickle.dumps({b"data": colored, b"fine_labels": [1, 2], b"coarse_labels": [0, 0]}, protocol=2)
    mat = Path(box(), "a.mat")
    savemat(mat, dict(X=images(3, 32).transpose(2, 3, 1, 0), y=np.array([[1], [10], [3]])))
    svhn = {f"digit_five/{p}_32x32.mat": mat.read_bytes() for p in ("train", "test")}
    pixels = b" ".join(b"%d:0.5" % (j + 1) for j in range(256))
    usps = bz2.compress(b"1 %b\n10 %b\n" % (pixels, pixels))
    classes = "dog elephant giraffe guitar horse house person".split()
    pacs = {f"pacs/{d}/{c}/1.png": png for d in ("photo", "sketch") for c in classes}
    folder = {f"shop/{d}/{c}/{i}.png": png for d in ("front", "back") for c in ("cat", "dog") for i in (1, 2)}
    return dict(mnist=mnist, rotated_mnist=mnist, svhn=svhn, folder=folder, pacs=pacs,
                cifar100={f"cifar100/cifar-100-python/{p}": cifar for p in ("train", "test")},
                usps={"digit_five/usps.bz2": usps, "digit_five/usps.t.bz2": usps})


SETS = functools.cache(sets)


@st.composite
def loaders(draw):
    name = draw(st.sampled_from(sorted(SETS())))
    file = draw(st.sampled_from(sorted(SETS()[name])))
    data = draw(damaged(SETS()[name][file]))
    return f"{name} {Path(file).suffix or 'pickle'}", lambda: loaded(name, SETS()[name] | {file: data})


def loaded(name, contents):
    "A data set of files, read in an empty cache."
    home = Path(box(), "data")
    for folder in (home, Path(box(), "cache2")): shutil.rmtree(folder, ignore_errors=True)
    for file, data in contents.items():
        (home/file).parent.mkdir(parents=True, exist_ok=True)
        (home/file).write_bytes(data)
    old = {k: os.environ.get(k) for k in ("FDGNB_DATA", "FDGNB_CACHE")}
    os.environ.update(FDGNB_DATA=str(home), FDGNB_CACHE=str(Path(box(), "cache2")))
    try:
        if name == "folder": return fdgnb.from_folder(home/"shop", size=8)
        if name in ("svhn", "usps"): return fdgnb.get_dataset("digit_five", size=16, domains=[name])
        return fdgnb.get_dataset(name, **dict(pacs=dict(size=8, domains=["photo", "sketch"])).get(name, {}))
    finally:
        for k, v in old.items(): os.environ.pop(k, None) if v is None else os.environ.update({k: v})


# ---- what is done with a run

@functools.cache
def run_of(method="fedavg", target="c"):
    "A run of one scored round, in memory."
    return fdgnb.fit(method, DATA, target, 1, progress=False, eval_every=1)


@functools.cache
def models():
    "[a run, what is read from a folder with and without a record]."
    bare = Path(box(), "bare")
    fdgnb.fit("fedavg", DATA, "c", 1, out=bare, progress=False, eval_every=1)
    return [run_of(), fdgnb.load(finished()), fdgnb.load(bare)]


def with_one(draw, valid, odd=hostile):
    "(name, arguments): all drawn from what is valid, one of them, in two of three cases, from anything."
    given = {k: draw(v) for k, v in valid.items()}
    name = draw(st.sampled_from(sorted(valid)))
    if draw(st.integers(0, 2)): given[name] = draw(odd)
    return name, given


def inside(value):
    "A path that a test may write to: below the folder of the fuzz, and odd values as they are."
    if not isinstance(value, (str, Path)) or not str(value): return value
    return Path(box(), "written", str(value).lstrip("/.~").replace("../", "")[:2000])


RULE, DOMAIN = plainly(None, "last", "source_val", "target"), plainly(None, "a", "b")
PICTURES = st.one_of(
    st.builds(images, st.integers(1, 3)), st.builds(lambda n: torch.from_numpy(images(n)), st.integers(1, 3)),
    st.builds(lambda n: torch.from_numpy(images(n))/255, st.integers(1, 3)), plainly(DATA["c"]))
ODD_PICTURES = st.one_of(hostile, st.builds(images, st.integers(0, 2), st.integers(0, 40)), st.sampled_from([
    torch.zeros(1, 3, 16, 16).to_sparse(), torch.zeros(1, 3, 16, 16, device="meta"), torch.zeros(1, 3, 16, 16,
                                                                                                 dtype=torch.cfloat),
    torch.full((1, 3, 16, 16), float("nan")), torch.zeros(1, 3, 16, 16).half(), torch.zeros(3, 16, 16).bool(),
    np.zeros((1, 3, 16, 16), object), np.zeros((1, 16, 16, 3),
                                               np.uint8), [[["x"]]], [images(1)[0]], DATA, Path("no.png"), ["no.png"],
    [Image.new("RGB", (5, 5))], Image.new("F", (9, 3)), np.ma.masked_array(images(1)), np.zeros((1, 3, 16, 16),
                                                                                                "U3"), iter([])]))


@st.composite
def loads(draw):
    which = draw(plainly("folder", "rule", "domain", "backbone"))
    given = dict(folder=finished(), backbone=None)
    asked = dict(rule=draw(RULE), domain=draw(DOMAIN))
    if draw(st.booleans()):                                  # else all as it should be
        odd = draw(hostile)
        if which in given: given[which] = odd
        else: asked[which] = odd
    return which, lambda: fdgnb.load(**given).predict(images(1), **asked)


@st.composite
def predicts(draw):
    name, given = with_one(draw, dict(rule=RULE, domain=DOMAIN))
    given["images"] = draw(st.one_of(PICTURES, ODD_PICTURES))
    model = draw(st.sampled_from(models()))
    return name, lambda: model.predict(**given)


@st.composite
def exports(draw):
    name, given = with_one(draw, dict(path=plainly("m.pt2"), rule=RULE, domain=DOMAIN, floats=st.booleans()))
    given["path"], model = inside(given["path"]), draw(st.sampled_from(models()))
    return name, lambda: model.export(**given)


@st.composite
def adapts(draw):
    method = draw(plainly("bnstats", "tent", "fdse", "bnstats", "tent"))
    name, given = with_one(draw, dict(images=PICTURES, rule=RULE), hostile)
    if name == "images" and draw(st.booleans()): given["images"] = draw(ODD_PICTURES)
    return f"{method}.{name}", lambda: run_of(method).adapt(**given).predict(images(2))


@st.composite
def runs(draw):
    model = draw(st.sampled_from(models()[:2]))
    which = draw(plainly("table", "save", "model_of", "plot", "round_of"))
    valid = dict(table=dict(point=plainly("aggregated", "local", "both"), metric=plainly("accuracy", "loss"),
                            rules=plainly(None, "last", ("last", "target"))),
                 save=dict(out=plainly("saved")), model_of=dict(domain=plainly(None, "a", "c"), rule=RULE),
                 plot={}, round_of=dict(rule=plainly("last", "target")))[which]
    if which == "plot" or which == "save" and model is not models()[0]: return which, lambda: model.table()
    name, given = with_one(draw, valid)
    if which == "save": given["out"] = inside(given["out"])
    return f"{which}.{name}", lambda: getattr(model, which)(**given)


@st.composite
def tunes(draw):
    site = Dataset("site", dict(s=Domain("s", torch.from_numpy(images(9)), torch.arange(9) % 2)), ["y", "z"])
    valid = dict(run=st.sampled_from([*models(), finished()]), data=plainly(site, DATA["c"]),
                 which=plainly("all", "head", "bn"),
                 epochs=plainly(1, 2), site=plainly(None, "s"), lr=plainly(None, .01), batch_size=plainly(2, 16),
                 test=st.floats(0, .9),
                 seed=st.integers(0, 9), rule=RULE, domain=DOMAIN)
    name, given = with_one(draw, valid)
    if not small([given["epochs"]]): given["epochs"] = 1
    return name, lambda: fdgnb.finetune(**given)


@st.composite
def callbacks(draw):
    from fdgnb.runs.callbacks import Csv, Metrics, Patience
    which = draw(plainly("Csv", "Metrics", "Patience", "function", "list"))
    odd, ours = draw(hostile), draw(st.booleans())
    def make():
        if which == "Csv": return [Csv(Path(box(), "h.csv") if ours else inside(odd))]
        if which == "Metrics": return [Metrics("macro_f1", every=1 if ours else odd)] if draw_name else [Metrics(odd)]
        if which == "Patience": return [Patience(2 if ours else odd)]
        if which == "function": return [lambda run, rows: [] if ours else odd]
        return [] if ours else odd
    draw_name = draw(st.booleans())
    return which, lambda: fdgnb.fit("fedavg", DATA, "c", 1, progress=False, eval_every=1, callbacks=make())


# ---- experiments

GRID = dict(method=plainly("fedavg", ["fedavg", "ga"], {"a": ("fedprox", dict(mu=.1))}, "fedavg(lr=.1)"),
            dataset=plainly(DATA),
            target=plainly("each", "pairs", "a", ["a", "b"], None), seed=plainly(0, [0, 1],
                                                                                 range(2)), rounds=plainly(1, None),
            protocol=plainly(None), scale=plainly(None), hyper=plainly(None, {}, dict(lr=.1)), device=plainly("cpu"))


@st.composite
def grids(draw):
    name, given = with_one(draw, GRID)
    if name == "seed" and not small([given["seed"]] if np.isscalar(given["seed"]) else [0]): given["seed"] = 0
    return name, lambda: fdgnb.experiments.grid.grid(**given)


@functools.cache
def scored():
    "The results of a small grid."
    from fdgnb.experiments.execution import run as play
    lines = fdgnb.experiments.grid.grid(["fedavg", "ga"], DATA, "each", 0, 1, eval_every=1)
    return play(lines, Path(box(), "store"), 1, Path(box(), "work"), progress=False)


@st.composite
def tables(draw):
    axes = plainly("label", "method", "dataset", "target")
    which = draw(plainly("table", "table", "results"))
    if which == "results":
        store = st.builds(lambda: Path(box(), "store"))
        valid = dict(grid=st.builds(scored), store=store, metrics=plainly((), "macro_f1", ["auc"]))
        name, given = with_one(draw, valid)
        given["store"] = inside(given["store"]) if isinstance(given["store"], str) else given["store"]
        return f"results.{name}", lambda: fdgnb.experiments.store.results(**given)
    valid = dict(results=st.builds(scored), rule=plainly("last", "target"), point=plainly("aggregated", "local"),
                 base=plainly("fedavg", "ga"), rows=axes, columns=axes, metric=plainly("accuracy"))
    name, given = with_one(draw, valid)
    return name, lambda: fdgnb.experiments.table.table(**given).text()


@st.composite
def searches(draw):
    span = plainly(None, {}, dict(lr=("float", .01, .1)), dict(lr=("choice", [.1, .2])),
                   dict(momentum=("float", 0., .9)))
    valid = dict(method=plainly("fedavg", "fedprox", "ga(d=.1)"), target=plainly("c", None), seed=plainly(0, (0,)),
                 trials=plainly(1, 2),
                 ranges=span,
                 lr=plainly(None, (.001, .1)), sampler_seed=st.integers(0, 9), hyper=plainly(None, {}, dict(clip=10.)),
                 store=st.builds(lambda: Path(box(), "store")), jobs=plainly(1))
    name, given = with_one(draw, valid)
    if isinstance(given["store"], str): given["store"] = inside(given["store"])
    if not small([given["trials"]]): given["trials"] = 1
    how = dict(dataset=DATA, rounds=1, eval_every=1, progress=False, work=Path(box(), "search"))
    return name, lambda: fdgnb.experiments.search.search(**given, **how)


# ---- the loaders of own data

class Pairs:
    "A data set of torch's kind, of given pairs."
    def __init__(self, x, y, classes=None):
        self.x, self.y = x, y
        if classes is not None: self.classes = classes

    def __len__(self): return len(self.y)

    def __getitem__(self, i): return self.x[i], self.y[i]


@st.composite
def owns(draw):
    import pandas as pd
    n = draw(st.integers(1, 5))
    words = [f"word {i}" for i in range(n)]
    good_x = plainly(images(n), images(n)/255., images(n).tolist())
    good_y = plainly([0, 1, 2, 0, 1][:n], list("abcab")[:n])
    bad = draw(plainly("neither", "neither", "x", "y"))      # at most one of the two is odd
    pair = draw(hostile if bad == "x" else good_x), draw(hostile if bad == "y" else good_y)
    names = plainly(None, None, ["a", "b", "c"])
    which = draw(plainly("arrays", "torch", "texts", "folder"))
    if which == "arrays":
        valid = plainly({"a": pair}, {"a": pair, "b": (images(2), [0, 1])})
        name, given = with_one(draw, dict(domains=valid, classes=names, name=plainly("d")))
        return f"arrays.{name}", lambda: fdgnb.from_arrays(**given)
    if which == "torch":
        sets = plainly({"a": Pairs(*pair)} if isinstance(pair[1], list) else {"a": pair},
                       {"a": Pairs(images(n), [0, 1, 2, 0, 1][:n], draw(hostile))})
        name, given = with_one(draw, dict(domains=sets, classes=names, size=plainly(None)))
        return f"torch.{name}", lambda: fdgnb.from_torch(**given)
    if which == "texts":
        table = pd.DataFrame(dict(text=words, label=["a", "b", "a", "b", "c"][:n],
                                  domain=["x", "y", "x", "y", "x"][:n]))
        column = draw(plainly("text", "label", "domain"))
        odd = draw(hostile)
        source = draw(st.one_of(hostile, plainly(table), plainly(table.drop(columns=column)),
                                st.builds(lambda: table.assign(**{column: [odd]*n}))))
        return f"texts.{column}", lambda: fdgnb.from_texts(source)
    home = Path(box(), "data", "shop")
    if not home.exists():
        for file, content in SETS()["folder"].items():
            (Path(box(), "data", file)).parent.mkdir(parents=True, exist_ok=True)
            Path(box(), "data", file).write_bytes(content)
    name, given = with_one(draw, dict(path=plainly(home), size=plainly(8, 16), classes=plainly(None, ["cat", "dog"]),
                                      domains=plainly(None, ["front"]), on_error=plainly("raise", "skip")))
    if isinstance(given["size"], int) and 64 < given["size"] < 5000: given["size"] = 64
    return f"folder.{name}", lambda: fdgnb.from_folder(**given)


KINDS = dict(call=call, setting=setting, method=method, partition=partitions, file=files, loader=loaders, load=loads,
             predict=predicts, export=exports, adapt=adapts, run=runs, tune=tunes, callback=callbacks, grid=grids,
             table=tables, search=searches, own=owns)


def outcome(do):
    "'accepted' or 'refused'; an error of more than one line, and any other error, comes out."
    before = torch.get_rng_state()
    def hangs(*_): raise TimeoutError(f"not done after {PATIENCE} s")
    signal.signal(signal.SIGALRM, hangs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signal.alarm(PATIENCE)
        try: do()
        except FdgnbError as e:
            assert "\n" not in str(e) and 0 < len(str(e)) <= 1000, str(e)
            return "refused"
        finally:
            signal.alarm(0)
            assert torch.equal(before, torch.get_rng_state()), "the global random generator was used"
    return "accepted"


def search(kind, n, seen, broken, seed=None):
    "Try n cases of a kind; count them by (kind, field, outcome), and keep the traceback of each place once."
    @settings(max_examples=n, database=None, deadline=None, derandomize=seed is None, print_blob=False,
              suppress_health_check=list(HealthCheck))
    @given(KINDS[kind]())
    def one(case):
        field, do = case
        try: how = outcome(do)
        except Exception as e:                              # it is there to find them, and to go on
            how, where = "traceback", traceback.extract_tb(e.__traceback__)
            ours = [f for f in where if "fdgnb/" in f.filename] or where
            broken.setdefault((kind, type(e).__name__, ours[-1].name), (field, traceback.format_exc()))
        seen[kind, field, how] += 1
    if seed is not None: one = __import__("hypothesis").seed(seed)(one)
    one()


def job(kind, n, seed):
    "What a process does at once: n cases of a kind, (counts, tracebacks)."
    torch.set_num_threads(1)
    os.chdir(box())                                                # what an odd path makes is swept
    resource.setrlimit(resource.RLIMIT_AS, (32*2**30, 32*2**30))   # a size of 2**31 shall fail, not swap
    seen, broken = collections.Counter(), {}
    search(kind, n, seen, broken, seed)
    return seen, broken


def printed(seen, broken):
    "The table of counts by kind and field, each traceback once, the totals; the totals."
    table, total = collections.defaultdict(collections.Counter), collections.Counter()
    for (kind, field, how), k in sorted(seen.items()): table[kind, field][how] += k
    print(f"{'kind':<10} {'field':<34}{'accepted':>9}{'refused':>9}{'traceback':>10}")
    for (kind, field), c in table.items():
        print(f"{kind:<10} {field:<34}{c['accepted']:>9}{c['refused']:>9}{c['traceback']:>10}")
        total += c
    for (kind, error, place), (field, text) in broken.items():
        print(f"\n{kind} {field}: {error} in {place}\n{text}")
    return total


def in_words(c):
    "The totals as a sentence."
    return (f"{c.total()} inputs: {c['accepted']} accepted ({c['accepted']/max(c.total(), 1):.0%}), "
            f"{c['refused']} refused in one line, {c['traceback']} tracebacks")


def main(n=5000, processes=2, *kinds, seed=0, at_once=100):
    """n inputs in all, `at_once` of a kind before the next; prints the totals as it goes, and the counts.

    Returns whether any gave a traceback, or too few were accepted."""
    kinds, seen, broken, began = kinds or tuple(KINDS), collections.Counter(), {}, time.time()
    each = -(-n//len(kinds))
    jobs = [(kind, min(at_once, each - at), seed + at) for at in range(0, each, at_once) for kind in kinds]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(job, *j) for j in jobs]):
            counts, found = done.result()
            seen.update(counts)
            broken = found | broken
            total = collections.Counter()
            for (*_, how), k in seen.items(): total[how] += k
            print(f"{time.time() - began:6.0f} s  {in_words(total)}", flush=True)
    total = printed(seen, broken)
    print("\n" + in_words(total))
    return bool(broken) or total["accepted"] < .25*total.total()


if __name__ == "__main__": sys.exit(main(*map(int, sys.argv[1:3]), *sys.argv[3:]))
