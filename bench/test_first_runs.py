"""The first command on a folder of one's own pictures, with every default: the table of reports/first_runs.md.

Twenty random federations (three to five sites, two to six classes) and six cuts with every class, of the pictures of
PACS and Office-Caltech10: 6 to 40 a class and site, as many of each or skewed. Each site is held out in turn."""
import shutil, textwrap
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
import fdgnb
from fdgnb.core import root
from fdgnb.data.cache import data_dir
from fdgnb.runs.plan import PICTURES

SETS = dict(pacs="*/full227", office_caltech10="*")
WORDS = """Each site is held out in turn; a row is the mean over the sites, in percent. *FedAvg*: the last round of
`fdgnb.fit("fedavg", folder, target=site)`. *pooled*: logistic regression (scikit-learn's penalty) on the same features
of all pictures of the other sites together, those too that FedAvg keeps for validation and test. *largest class*: its
share at the site held out. The network, rate and rounds of these defaults were chosen on the PACS federations of this
table, so their rows do not test that choice. Made by `make bench`."""


def list_pictures(name):
    "{domain: {class: files}} of a data set; nothing where it is not here."
    folders = sorted(p for p in (data_dir()/name).glob(SETS[name]) if p.is_dir())
    named = {p.parent.name if p.name == "full227" else p.name: p for p in folders}
    return {d: {c.name: sorted(c.glob("*.jpg")) for c in sorted(p.iterdir()) if c.is_dir()} for d, p in named.items()}


def draw_number(rng): return round(np.exp(rng.uniform(np.log(6), np.log(40))))


def draw_sites(pictures, domains, classes, number, rng):
    "{site: {class: files}}: `number` of each, None: skewed. A domain that is there twice is shared by two sites."
    sites = {}
    for domain in domains:
        here = f"{domain}2" if domain in sites else domain
        taken = {file for files in sites.get(domain, {}).values() for file in files}
        share = domains.count(domain)
        sites[here] = {}
        for c in classes:
            free = [file for file in pictures[domain][c] if file not in taken]
            most = min(number or draw_number(rng), len(pictures[domain][c])//share)
            sites[here][c] = [free[i] for i in rng.permutation(len(free))[:most]]
    return sites


def draw_federation(k, sets):
    "(name, sites) of a random federation."
    rng = np.random.default_rng(k)
    name = list(sets)[k % len(sets)]
    pictures, n = sets[name], int(rng.integers(3, 6))
    domains = [str(d) for d in rng.permutation(list(pictures))]
    domains = (domains + domains[:1])[:n]
    classes = rng.permutation(list(pictures[domains[0]]))[:rng.integers(2, 7)]
    number = None if rng.integers(2) else draw_number(rng)
    return f"random {k + 1}, of {name}", draw_sites(pictures, domains, sorted(map(str, classes)), number, rng)


def draw_cut(name, number, sets):
    "(name, sites) of a cut with every domain and class."
    pictures, rng = sets[name], np.random.default_rng(0)
    sites = draw_sites(pictures, list(pictures), list(next(iter(pictures.values()))), number, rng)
    return f"{name}, {f'{number} a class' if number else 'skewed'}", sites


def score_sites(folder):
    "A row for each site of a folder that is held out."
    data, rows = fdgnb.get_dataset(folder, **PICTURES), []
    for target in data.names:
        run = fdgnb.fit("fedavg", folder, target=target, progress=False)
        others = [d for name, d in data.domains.items() if name != target]
        x, y = (np.concatenate([getattr(d, k) for d in others]) for k in "xy")
        own = data[target]
        pooled = LogisticRegression(max_iter=5000).fit(x, y).score(own.x.numpy(), own.y.numpy())
        accuracy, largest = run.table().loc["last", "target"], np.bincount(own.y).max()/len(own)
        rows.append({"site": target, "pictures": len(own), "FedAvg": accuracy, "pooled": pooled,
                     "largest class": largest, "seconds": sum(run.seconds)})
    return pd.DataFrame(rows)


def test_first_runs(tmp_path, monkeypatch):
    sets = {name: list_pictures(name) for name in SETS}
    missing = [name for name, pictures in sets.items() if not pictures]
    if missing: pytest.skip(f"the pictures of {' and '.join(missing)} are not here (FDGNB_DATA)")
    monkeypatch.setenv("FDGNB_CACHE", str(tmp_path/"cache"))
    cuts = [draw_cut(name, number, sets) for name in sets for number in (6, 40, None)]
    found = []
    for name, sites in [draw_federation(k, sets) for k in range(20)] + cuts:
        folder = tmp_path/name
        for site, by_class in sites.items():
            for c, files in by_class.items():
                (folder/site/c).mkdir(parents=True)
                for file in files: shutil.copy(file, folder/site/c)
        found.append(score_sites(folder).assign(federation=name, sites=len(sites), classes=len(by_class)))
        print(name, found[-1][["FedAvg", "pooled", "largest class"]].mean().round(3).to_dict(), flush=True)
    by_site = pd.concat(found)
    table = by_site.groupby("federation", sort=False).agg(
        {"sites": "first", "classes": "first", "pictures": "sum", "FedAvg": "mean", "pooled": "mean",
         "largest class": "mean", "seconds": "mean"})
    def describe(what, t):
        near, above = (t.FedAvg >= t.pooled - .05).mean(), (t.FedAvg > t["largest class"]).mean()
        return f"Of {len(t)} {what}, {near:.0%} are within five points of pooled, {above:.0%} above the largest class."

    said = describe("federations", table), describe("sites held out", by_site)
    percent = ["FedAvg", "pooled", "largest class"]
    table[percent] *= 100
    cells = [list(map(str, table.reset_index())), ["---"] + ["---:"]*len(table.columns)]
    for row in table.reset_index().itertuples(index=False):
        cells.append([f"{v:.1f}" if isinstance(v, float) else str(v) for v in row])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    words = textwrap.fill(" ".join([*WORDS.split(), *said]), 120)
    (root()/"reports"/"first_runs.md").write_text(f"# First runs\n\n{words}\n\n{lines}\n")
    print(*said, sep="\n")
