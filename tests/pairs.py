"""All pairs of methods: each runs a round on a few images, or is refused for a reason of this list.

`python tests/pairs.py` (`make pairs`) runs all of them, `python tests/pairs.py tent` those with a key; it
prints what was refused and why, and fails on anything else. CI takes a sample: tests/test_pairs.py.
"""
import argparse, collections, itertools, os, re, sys
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from joblib import Parallel, delayed
import fdgnb
from digests import data, network
from fdgnb.core import FdgnbError
from fdgnb.federation.compose import METHODS, hyper_names, method_class
from fdgnb.runs.plan import plan
from fdgnb.runs.setup import Federation

REASONS = {                                             # why a sum may be refused -> how the refusal reads
    "one of them contains the other": r"'[\w+]+' cannot be combined: '\w+' already contains '\w+'",
    "they share a part": r"'[\w+]+' cannot be combined: '\w+' is in it twice",
    "both replace the same hook": r"'\w+' and '\w+' cannot be combined: both replace the hook '\w+'",
    "no layer to drop units of": r"feddrop: \w+ has no fully connected hidden layer: .*",
    "to be written the other way round": r"fedsr: it changes the features that a discriminator reads: "
                                         r"write fedsr first",
}
LIGHT = dict(vhl_n=64, mmd_batch=8, votes=16, samples=16, target_samples=16, S=8)   # where a method has them
TINY = dict(target="t", rounds=1, seed=3, lr=.01, batch_size=8, local_steps=1, eval_every=0, workers=1,
            progress=False)


def light(key):
    "The hyper-parameters of a method that make it small."
    own = hyper_names(method_class(key))
    return {k: v for k, v in LIGHT.items() if k in own}


def bars(n=12):
    "A few images of 16 pixels in the domains a, b, c and t, for the network `bars`."
    if "bars" not in fdgnb.models.MODELS: fdgnb.models.add_backbone("bars", network, (3, 16, 16))
    return data(16, n=n)


def short(key, images=None, **given):
    "A round or more of a method or a sum on a few images of 16 pixels."
    return fdgnb.fit(key, images or bars(), **TINY | dict(backbone="bars") | light(key) | given)


def reason(error):
    "The reason of the list that a refusal is; AssertionError where it is none, or longer than a line."
    found = [why for why, text in REASONS.items() if re.fullmatch(text, str(error))]
    assert found, f"not on the list: {error}"
    return found[0]


def outcome(key, **given):
    "'' where a method runs a round with finite weights, else the reason for which it is refused."
    try: method_class(key)
    except FdgnbError as e: return reason(e)
    small, given = bars(), TINY | dict(backbone="bars") | light(key) | given
    try: Federation(plan(key, small, **{k: v for k, v in given.items() if k not in ("workers", "progress")}))
    except FdgnbError as e: return reason(e)                                # before anything is trained
    run = fdgnb.fit(key, small, **given)
    state = run.model.state_dict()
    assert all(torch.isfinite(v).all() for v in state.values() if v.is_floating_point()), "not finite"
    return ""


def pairs(only="", back=False):
    "All pairs of registered methods, or those with one of them; back: written the other way round."
    found = [p for p in itertools.combinations(METHODS.names(), 2) if only in ("", *p)]
    return ["+".join(p[::-1] if back else p) for p in found]


def tried(key):
    "(key, what came of it, whether that is a failure)."
    torch.set_num_threads(1)
    try: return key, outcome(key), False
    except Exception as e: return key, f"{type(e).__name__}: {e}", True             # each pair is reported


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("only", nargs="?", default="", help="pairs with this method only")
    p.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    p.add_argument("--back", action="store_true", help="every pair written the other way round")
    a = p.parse_args()
    count, bad = collections.Counter(), []
    pool = Parallel(a.jobs, return_as="generator")
    for key, why, failed in pool(map(delayed(tried), pairs(a.only, a.back))):
        count["FAILED" if failed else why or "ran a round"] += 1
        if failed: bad.append(key)
        if why: print(f"{key:28} {why}", flush=True)
    for why, n in count.most_common(): print(f"{n:5} {why}")
    sys.exit(bool(bad))
