"""What README.md and nbs/index.ipynb list: `python tests/lists.py` writes methods and results anew."""
import itertools, json
from pathlib import Path
import pandas as pd
from fdgnb.experiments.statistics import deployed, table
from fdgnb.experiments.store import Store
from fdgnb.federation.compose import METHODS
from fdgnb.tables.comparison import across, across_text, blocks, common_runs, distinct, friedman
from fdgnb.tables.comparison import moving, steps_beside
from fdgnb.tables.ledger import Records, counts, ledger
from fdgnb.tables.overview import home

ROOT = Path(__file__).resolve().parent.parent
FILES = {"README.md": "nbs/", "nbs/index.ipynb": ""}                # file -> what is before a page's path
BEGIN, RESULTS = "<!-- methods: tests/lists.py -->", "<!-- results: tests/lists.py -->"
END = "<!-- end -->"
SHOWN = {"digits, held-out domains, scale cpu, 12 rounds, cnn2": "digits",
         "office_caltech10, held-out domains, scale cpu, 60 rounds, cnn2, 28 px": "Office-Caltech10",
         "office_caltech10, held-out domains, scale cpu, 15 rounds, timm:tf_efficientnet_lite0, 96 px, "
         "pretrained (packaged)": "Office-Caltech10, pretrained"}
READING = ("Accuracy on the held-out domain, %, averaged over the domains ({}), rule source_val; in "
           "brackets the gain over FedAvg in points: ▲ beats it, ▼ is worse, by Student's t of the gains "
           "paired within target and seed, at 5 % after Holm for each data set by itself; = is FedAvg in "
           "every run; ? has one seed and no test; without a mark no difference is shown. (n): a mean over "
           "fewer seeds. Blank: not run, or not on every domain. A mark is of these domains with other "
           "seeds; of other domains so few can hardly tell: whether methods differ in their order over them "
           "at all, Friedman's test says with p = {}.\n")
ADAPTED = ("`(adapted)`: the last round's model after what the method does with the target's unlabeled "
           "images at test time, which no other row looks at, but FedKA's in training (the others stand at "
           "the round that source validation chooses, so a part of such a gain is the round's: [how "
           "large](reports/16_ours.ipynb)). `uniform` is FedAvg with clients that weigh alike; so they do in"
           " FedSB and FDSE, in GA and GroupDRO to begin with, which is to be taken off before a gain is the"
           " method's ([how much](reports/16_ours.ipynb)). Learning rate and momentum are the protocol's for"
           " all, untuned; but SCAFFOLD, which is defined for plain SGD, has no momentum, so the same rate "
           "takes it about a tenth as far (searched, below, it is near the others). More steps in a round "
           "are more training in as many rounds, fewer are less: over FedAvg's steps, {}.{} Rounds, and on "
           "Office-Caltech10 network and image size (`cnn2`, 28 pixels; pretrained: EfficientNet-Lite0 from "
           "ImageNet's weights, 96 pixels), are fewer and smaller than the protocol's, so that they fit two "
           "cores, and not all methods have come to rest in them: in the last sixth of the rounds, over the "
           "sixth before, the target's accuracy moved {}. What it says, tables by target, ranks, costs, "
           "selection rules: [our own comparison](reports/16_ours.ipynb).\n")
TUNED = ROOT/"reports"/"ours_tuned_against.md"
SEARCHED = ("The methods searched so far ({0}), each at a learning rate and some values of its own found for "
            "each held-out domain by eight short trials that look at the other domains' validation samples "
            "alone, against FedAvg searched alike. What methods do at test time has no say in the choice, so "
            "BNStats has FedAvg's; and eight trials tie a method's own values to the rates "
            "([tuned](reports/17_tuned.ipynb) says how). By\n\n"
            '    papermill nbs/tables/17_tuned.ipynb out.ipynb -p methods "{0}" -p run_missing True\n')
COMMAND = ('papermill nbs/compare.ipynb out.ipynb -p methods "{}" -p dataset {} -p seeds {} -p rounds {} '
           "-p scale cpu{} -p store reports/records")


def lines(prefix):
    "The list of methods, a line per page."
    page = lambda key: home(key)
    for path, keys in itertools.groupby(sorted(METHODS.names(), key=lambda k: (page(k), k)), page):
        stem = Path(path).stem.split("_", 1)[1]
        yield f"* [{stem}]({prefix}{path}): " + " ".join(f"`{k}`" for k in keys)


def listed(file):
    "The list of methods as it stands in a file."
    return "\n".join([BEGIN, *lines(FILES[file]), END])


def made_by(setting, runs):
    "On what and how long a setting's runs ran, and by which command."
    at, records = runs.record.iloc[0]["args"], list(runs.record)
    hours = sum(r["seconds"]["total"] for r in records)/3600
    on = " and ".join(sorted({r["hardware"] for r in records}))
    given = {k: v for k in ("size", "backbone", "pretrained") if (v := at["settings"][k])}
    extra = f" -r hyper '{{{', '.join(f'{k}: {v}' for k, v in given.items())}}}'"*("size" in given)
    yield (f"*{setting}*: {len(records)} runs, {hours:.1f} hours in all of one process, other work beside "
           f"it, on {on}; by\n")
    yield "    " + COMMAND.format(", ".join(dict.fromkeys(runs.method)), at["dataset"], runs.seed.nunique(),
                                  at["rounds"], extra) + "\n"


def said_of_steps(groups):
    "Whose rounds have other steps than FedAvg's, in the settings that README shows."
    ratios = {SHOWN[s]: steps_beside(g) for s, g in groups.items()}
    differ = {s: ", ".join(f"`{m}` {v:.2f}" for m, v in r.items() if abs(v - 1) > .05)
              for s, r in ratios.items()}
    return "; ".join(f"{s}: {text}" for s, text in differ.items() if text)


def said_of_more():
    "What FedAvg with three local epochs has in the settings README shows, of the tables on file; or nothing."
    names = {}
    for s in SHOWN: names.setdefault(s.split(",")[0], SHOWN[s])          # of a data set its first setting
    files = {name: ROOT/"reports"/f"ours_steps_{data}.csv" for data, name in names.items()}
    found = {n: pd.read_csv(f, index_col=0).Avg["fedavg, 3 epochs"] for n, f in files.items() if f.exists()}
    has = ", ".join(f"{v} on {n}" for n, v in found.items())
    return (f" FedAvg with three local epochs, three times its steps, has {has} ([beside what beats FedAvg]"
            "(reports/16_ours.ipynb)).")*bool(has)


def over_domains(groups):
    "Friedman's p in each setting of several seeds that README shows."
    wide = {SHOWN[s]: distinct(blocks(deployed(g))) for s, g in groups.items() if g.seed.nunique() > 1}
    targets = lambda w: w.index.get_level_values(0).nunique()
    p = {s: friedman(w) for s, w in wide.items() if min(w.shape[1], targets(w)) > 2}
    return ", ".join(f"{v:.2g} ({s})" for s, v in p.items())


def said_of_rest(groups):
    "By how much the target's curve still rises, of FedAvg and of the method that rises most."
    said = []
    for s, g in groups.items():
        rose = moving(g)["target moved"]
        most = rose.idxmax()
        said.append(f"on {SHOWN[s]} by {rose['fedavg']:+.1f} points for FedAvg and at most "
                    f"{rose[most]:+.1f} (`{most}`)")
    return "; ".join(said)


def shown(store):
    "The main comparisons side by side, on what and how long they ran, by which commands; [] of none."
    groups = common_runs(store)[0]
    there = {s: groups[s] for s in SHOWN if s in groups}
    for s in SHOWN:
        like = [g for g in groups if g.startswith(s)]
        if like and s not in there: raise ValueError(f"{s} is {like} now")
    if not there: return
    lines = across({s: table(deployed(runs)) for s, runs in there.items()})
    number = lambda n, what: f"{n} {what}{'s'*(n != 1)}"
    seeds = "; ".join(f"{SHOWN[s]}: {number(runs.target.nunique(), 'domain')}, "
                      f"{number(runs.seed.nunique(), 'seed')}" for s, runs in there.items())
    yield READING.format(seeds, over_domains(there))
    yield across_text(lines).rename(columns=SHOWN).to_markdown(disable_numparse=True) + "\n"
    yield ADAPTED.format(said_of_steps(there), said_of_more(), said_of_rest(there))
    for s, runs in there.items():
        whole = lines.label[(lines.setting == s) & (lines.text != "")]
        yield from made_by(s, runs[runs.label.isin(whole)])


def searched():
    "The table of tuned methods, as its report wrote it; [] before there is one."
    if not TUNED.exists(): return
    rows = pd.read_csv(TUNED.with_suffix(".csv")).method.str.split(" (tuned)", regex=False).str[0]
    yield SEARCHED.format(", ".join(dict.fromkeys(rows)))
    yield TUNED.read_text()
    yield "By Student's t at 5 %, corrected after Holm:\n"
    yield TUNED.with_name("ours_tuned_verdicts.md").read_text()


def ledger_line(records):
    "The counts of the ledger, in words."
    book = ledger(records)
    c, early = counts(book).loc["all"], int(book.at_least.notna().sum())
    few = "; ".join(f"{c[k]:,} {k}" for k in ("reproduced", "not reproduced", "not run"))
    said = f"Of the {c.numbers:,} numbers that the papers print ([ledger](reports/ledger.csv)): {few}."
    exact = book[book.metric.str.contains("acc")].state.value_counts()
    by_state = "; ".join(f"{exact.get(k, 0):,} {k}" for k in c.index[:3])
    said += f" Of accuracies alone: {by_state}; the rest are sizes, traffic, FLOPs, rounds and seconds."
    return said + (f" {early} of those not reproduced were decided, in whole or in part, by the first rounds "
                   "of runs, which can show a number to be too low and nothing else.")*bool(early)


def results():
    "The results as they stand in README.md."
    store = Store()
    return "\n".join([RESULTS, *shown(store), *searched(), ledger_line(Records(store)), END])


def text_of(file):
    "A file's text; of a notebook, of its cells."
    text = (ROOT/file).read_text()
    return "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"]) if "{" == text[0] else text


def rewritten(text, begin, new):
    "A text with something new between its marks."
    before, rest = text.split(begin)
    return before + new + rest.split(END, 1)[1]


if __name__ == "__main__":
    readme = rewritten(text_of("README.md"), BEGIN, listed("README.md"))
    (ROOT/"README.md").write_text(rewritten(readme, RESULTS, results()))
    page = ROOT/"nbs/index.ipynb"
    nb = json.loads(page.read_text())
    cell, = (c for c in nb["cells"] if BEGIN in "".join(c["source"]))
    new = rewritten("".join(cell["source"]), BEGIN, listed("nbs/index.ipynb"))
    cell["source"] = new.splitlines(keepends=True)
    page.write_text(json.dumps(nb, indent=1, ensure_ascii=False) + "\n")
