"""What README.md and nbs/index.ipynb list: `python tests/lists.py` writes methods and results anew."""
import itertools, json
from pathlib import Path
import pandas as pd
from fdgnb.experiments.statistics import judged
from fdgnb.experiments.table import deployed, table
from fdgnb.experiments.store import Store
from fdgnb.federation.compose import METHODS
from fdgnb.runs.protocols import resolve
from fdgnb.tables.comparison import SYSTEMS, across, across_text, blocks, common_runs, distinct, friedman
from fdgnb.tables.comparison import gains_over, moving, steps_beside, without_client
from fdgnb.tables.ledger import OPEN, Records, counts, ledger
from fdgnb.tables.overview import home

ROOT = Path(__file__).resolve().parent.parent
FILES = {"README.md": "nbs/", "nbs/index.ipynb": ""}                # file -> what is before a page's path
BEGIN, RESULTS = "<!-- methods: tests/lists.py -->", "<!-- results: tests/lists.py -->"
END = "<!-- end -->"
SHOWN = {"digits, held-out domains, scale cpu, 12 rounds, cnn2": "digits",
         "office_caltech10, held-out domains, scale cpu, 60 rounds, cnn2, 28 px": "Office-Caltech10",
         "pacs, held-out domains, scale cpu, 20 rounds, cnn2, 28 px": "PACS",
         "office_caltech10, held-out domains, scale cpu, 15 rounds, timm:tf_efficientnet_lite0, 96 px, "
         "pretrained (packaged)": "Office-Caltech10, pretrained"}
LONGER = "fedavg, 3 epochs"
WHICH = ("**Which one?** {} Give FedAvg more local training first{}. In the table stand FedAvg, the five "
         "systems and what beats FedAvg somewhere (▲), by what it may look at:\n\n* *the target's "
         "unlabeled images, at test time*: {};\n* *not the target*: {} (`budget` is a part of "
         "FedSB).\n\nWhere the clients' own domains are what counts: [in-domain](reports/16_ours.ipynb), "
         "{}.\n")
READING = ("Accuracy on the held-out domain, %, averaged over the domains; in brackets the gain over "
           "FedAvg in points, paired within target and seed: ▲ beats it, ▼ is worse, = has FedAvg's "
           "accuracy in every run, ? has no test (one seed, or seeds that agree); without a mark no "
           "difference is shown. "
           "`(adapted)`: after what the method does with the target's unlabeled images, in the last round. "
           "(n): of n seeds, fewer than others; its gain is over FedAvg of the same seeds, not over the "
           "mean above, and not comparable with gains of more. Blank: not run, or not on every domain.\n")
MIND = ("These are short runs of small networks on two cores (rounds, sizes: below); most have not come to "
        "rest. On Office-Caltech10 without pretraining FedSB, GA and FDSE are below FedAvg on amazon and "
        "caltech, and gain on dslr and webcam, which are small and show the same objects{} ([by "
        "domain and by client](reports/16_ours.ipynb), made by `make reports`).\n")
COPIED = (": {} points, but {} where the other of the two is no client (and {} where amazon is none). The "
          "gain is what a small client that shows the target's own objects is worth")
TESTS = ("Domains and seeds: {}. The round is the one that source validation chooses (rule source_val). A "
         "mark is by a t test of the gains paired within target and seed (variances within the targets, "
         "Satterthwaite's degrees of freedom: [statistics](nbs/experiments/05_statistics.ipynb)), at 5 % "
         "after Holm for each data set by itself; `" + LONGER + "`, three times FedAvg's steps, is tested "
         "against FedAvg alone, outside of that. Of {} methods there are so far {}.\n\n{}\n")
DOMAINS = ("A mark is of these domains with other seeds. Whether an order of methods carries over to other "
           "domains so few can hardly tell; Friedman's test of the order over these: {}. Over all images "
           "(ALL), where a large domain counts for more, the gains of those that beat FedAvg are {}.\n")
ADAPTED = ("`(adapted)`: the last round's model after what the method does with the target's unlabeled "
           "images at test time, which no other row looks at, but FedKA's in training (the others stand at "
           "the round that source validation chooses, so a part of such a gain is the round's: [how "
           "large](reports/16_ours.ipynb)). On Office-Caltech10 and PACS Tent gets its batches in the order "
           "of the files, by class. "
           "`uniform` is FedAvg with clients that weigh alike; so they do "
           "in FedSB and FDSE, in GA, GroupDRO and FedHEAL to begin with, which is to be taken off before "
           "a gain is the method's ([how much](reports/16_ours.ipynb)). FDSE from ImageNet's weights is "
           "our reading of a case that its paper leaves open: of each layer that it replaces half of the "
           "filters begin anew.\n\n{}. It is the same for all, untuned; but SCAFFOLD, which is defined for "
           "plain SGD, has no momentum, so the same rate takes it about a tenth as far (searched, on "
           "digits, it is near the others).{} More steps in a round are more training in as many rounds, "
           "fewer are less: over FedAvg's steps, {}. Rounds, and on Office-Caltech10 and PACS network and "
           "image size (`cnn2`, 28 pixels; pretrained: EfficientNet-Lite0 from ImageNet's weights, 96 "
           "pixels), are fewer and smaller than the protocol's, and on PACS 1,500 images of a domain at "
           "most (so that ALL is Avg there), so that they fit two cores, and most methods have not come to "
           "rest in them; at rest are {}. In the last sixth of the rounds, over the sixth before, the "
           "target's accuracy moved {}. What it says, tables by target, ranks, costs, selection rules: "
           "[our own comparison](reports/16_ours.ipynb).\n")
PROCESSORS = (" One run gives other bits on another kind of processor, and {}; so `tent`, `noeval` and "
              "`consistency`, whose aggregated model is FedAvg's, may lie apart from it by what the "
              "processor does ([how much](reports/16_ours.ipynb)).")
PROTOCOL = ("Protocol [`common`](nbs/runs/06_protocols.ipynb): {optimizer}, rate {lr} (a tenth of it after "
            "80 % of the rounds), momentum {momentum}, weight decay {weight_decay}, batches of {batch_size}, "
            "{local_epochs} local epoch; at its full scale {rounds} rounds and on Office-Caltech10 "
            "`{backbone}`, on PACS `{pacs}`, at {size} pixels; one client a source domain, all in every "
            "round")
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


def spent(records):
    "How many runs, how long they took, and on what they ran."
    hours = sum(r["provenance"]["seconds"]["total"] for r in records)/3600
    on = " and ".join(sorted({r["provenance"]["hardware"] for r in records}))
    return f"{len(records):,} runs, {hours:.1f} hours in all of one process", on


def made_by(setting, runs, **hyper):
    "On what and how long a setting's runs ran, and by which command: one for each number of seeds."
    at = runs.record.iloc[0]["args"]
    took, on = spent(runs.record)
    given = {k: v for k in ("size", "backbone", "pretrained") if at["settings"]["size"] and (
        v := at["settings"][k])} | hyper
    extra = f" -r hyper '{{{', '.join(f'{k}: {v}' for k, v in given.items())}}}'"*bool(given)
    name = ", ".join([setting, *(f"{k} {v}" for k, v in hyper.items())])
    yield f"*{name}*: {took}, other work beside it, on {on}; by\n"
    seeds = runs.groupby("method", sort=False).seed.nunique()
    for n in sorted({*seeds}, reverse=True):
        yield "    " + COMMAND.format(", ".join(seeds.index[seeds == n]), at["dataset"], n, at["rounds"],
                                      extra) + "\n"


def said_of_steps(groups):
    "Whose rounds have other steps than FedAvg's, in the settings that README shows."
    ratios = {SHOWN[s]: steps_beside(g) for s, g in groups.items()}
    differ = {s: ", ".join(f"`{m}` {v:.2f}" for m, v in r.items() if abs(v - 1) > .05)
              for s, r in ratios.items()}
    return "; ".join(f"{s}: {text}" for s, text in differ.items() if text)


def longer(groups):
    "FedAvg with three local epochs against FedAvg by itself, as lines of `across`."
    two = {s: g[g.label.isin(("fedavg", LONGER))] for s, g in groups.items()}
    lines = across({s: table(g) for s, g in two.items() if LONGER in set(g.label)})
    return lines[(lines.label == LONGER) & (lines.text != "")]


def everywhere(lines):
    "What beats FedAvg in each setting where all have a test, in words."
    tested = [s for s, g in lines.groupby("setting", sort=False) if "untested" not in {*g.kind}]
    wins = lines[lines.setting.isin(tested) & (lines.kind == "beats")].label.value_counts()
    always, on = wins.index[wins == len(tested)], ", ".join(SHOWN[s] for s in tested)
    if not len(always): return f"No method is shown to beat FedAvg on each of {on}."
    return f"On each of {on} FedAvg is beaten by {', '.join(f'`{m}`' for m in always)}."


def somewhere(lines, adapted):
    "What beats FedAvg in some setting; after adapting to the target, or without."
    ahead = lines.label[(lines.kind == "beats") & (lines.label.str.endswith(" (adapted)") == adapted)]
    return [*dict.fromkeys(ahead)]


def which_one(lines, more, inside):
    "What a reader in a hurry asks, out of the lines of `across`."
    of = lambda adapted: ", ".join(f"`{m}`" for m in somewhere(lines, adapted)) or "none"
    has = ", ".join(f"{r.avg:.1f} on {SHOWN[r.setting]}" for r in more.itertuples())
    long = (f": with three local epochs in as many rounds, so three times the steps, it has {has} "
            f"(`{LONGER}`; no other row but `ccst` takes as many)")*bool(has)
    return WHICH.format(everywhere(lines), long, of(True), of(False), inside)


def processors(groups):
    "Which settings' runs are from several kinds of processor, in words; '' of none."
    kinds = {SHOWN[s]: sorted({r["provenance"]["hardware"] for r in runs.record}) for s, runs in groups.items()}
    said = [f"on {s} runs are of {' and '.join(k)}" for s, k in kinds.items() if len(k) > 1]
    return PROCESSORS.format("; ".join(said))*bool(said)


def order_of(wide):
    "Friedman's p, and without the two lowest methods; None where there are too few."
    distinct_ones = distinct(wide)
    if wide.index.get_level_values(1).nunique() < 2: return
    if min(distinct_ones.shape[1], wide.index.get_level_values(0).nunique()) < 3: return
    said = f"p = {friedman(distinct_ones):.2g}"
    without = distinct(wide.drop(columns=wide.mean().nsmallest(2).index))
    if without.shape[1] > 2: said += f", without the two lowest {friedman(without):.2g}"
    return said


def over_domains(groups):
    "Friedman's p in each setting of several seeds that README shows."
    p = {SHOWN[s]: order_of(blocks(deployed(g))) for s, g in groups.items()}
    return "; ".join(f"{v} ({s})" for s, v in p.items() if v)


def said_of_all(tables):
    "What the methods that beat FedAvg gain over all images, by setting."
    said = []
    for s, t in tables.items():
        kinds = judged(t)
        gains = 100*(t.mean.ALL - t.mean.ALL["fedavg"])
        ahead = [f"`{m}` {gains[m]:+.1f}" for m in kinds.index[kinds == "beats"]]
        if ahead: said.append(f"on {SHOWN[s]} {', '.join(ahead)}")
    return "; ".join(said)


def said_of_rest(groups):
    "By how much the target's curve still rises, of FedAvg and of the method that rises most."
    said = []
    for s, g in groups.items():
        rose = moving(g)["target moved"]
        most = rose.idxmax()
        other = f" and at most {rose[most]:+.1f} (`{most}`)" if rose[most] > rose["fedavg"] else ", the most"
        said.append(f"on {SHOWN[s]} by {rose['fedavg']:+.1f} points for FedAvg{other}")
    return "; ".join(said)


def at_rest(groups):
    "How many methods have come to rest, by setting."
    rest = {SHOWN[s]: moving(g).rest for s, g in groups.items()}
    return "; ".join(f"on {s} {r.sum()} of {len(r)}" for s, r in rest.items())


def in_one(wide):
    "Of the methods by settings, those in one setting alone that do not beat FedAvg there: rows of few words."
    return ((wide != "").sum(axis=1) == 1) & ~wide.apply(lambda c: c.str.contains("▲")).any(axis=1)


def named(wide):
    "Such rows in words, by setting."
    for name, texts in wide.items():
        said = ", ".join(f"`{m}` {text}" for m, text in texts[texts != ""].items())
        if said: yield f"On {name} alone: {said}.\n"


def folded(summary, *parts):
    "Parts of a page that open on a click."
    yield f"<details><summary>{summary}</summary>\n"
    yield from parts
    yield "</details>\n"


def indoors(groups):
    "On what in-domain runs there are, and what is shown to beat clients that train alone, in words."
    inside = {s: g for s, g in groups.items() if ", in-domain," in s and "local" in set(g.label)}
    name = lambda s: dict(office_caltech10="Office-Caltech10", pacs="PACS").get(d := s.split(",")[0], d)
    kinds = {name(s): judged(table(g, base="local")) for s, g in inside.items()}
    above = {s: [f"`{m}`" for m in k.index[k == "beats"]] for s, k in kinds.items()}
    if not above: return "without clients that train alone yet"
    said = "; ".join(f"on {s} {', '.join(v) or 'no row'}" for s, v in above.items())
    *first, last = above
    every = f"{', '.join(first)} and {last}" if first else last
    alike = f"on {every} no row" if not any(above.values()) else said
    return (f"train alone first: {alike} is shown to beat `local`, clients that never average; on "
            "Office-Caltech10, with few test images, little is shown at all")


def copied(everything):
    "What the gains on dslr and webcam are with all clients, without the near copy, without amazon."
    there = [s for s in SHOWN if s.startswith("office_caltech10") and ", 60 rounds," in s][0]
    parts = [without_client(everything, there, gone) for gone in ("near copy", "amazon")]
    three, said = ["fedsb", "ga", "fdse"], []
    if any(len(p[p.label.isin(["fedavg", *three])]) < 24 for p in parts): return ""        # three seeds each
    for runs in (everything[there], *parts):
        gains = gains_over(runs, three)[0].groupby(level=0).mean()
        said.append(f"{gains.min(axis=None):+.1f} to {gains.max(axis=None):+.1f}")
    return COPIED.format(*said)


def table_of(lines, more, why=""):
    "FedAvg, the five systems and what beats FedAvg somewhere; below, to unfold, the others."
    wide = across_text(pd.concat([lines, more])).rename(columns=SHOWN)
    ahead = (*SYSTEMS, *somewhere(lines, True), *somewhere(lines, False))
    rows = [m for m in wide.index if m in ahead or m.removesuffix(" (adapted)") in SYSTEMS]
    first = [*dict.fromkeys(["fedavg", *more.label, *rows])]
    yield wide.loc[first].to_markdown(disable_numparse=True) + "\n"
    yield MIND.format(why)
    rest = wide.drop(index=first)
    few = in_one(rest) & (wide.shape[1] > 1)
    several = [rest[~few].to_markdown(disable_numparse=True) + "\n"] if (~few).any() else []
    said = f"The other {len(rest)} rows, which beat FedAvg in none of these settings"
    if len(rest): yield from folded(said, *several, *named(rest[few]))


def minded(there, tables):
    "How it was tested, and under which protocol."
    number = lambda n, what: f"{n} {what}{'s'*(n != 1)}"
    several = lambda runs: sorted({*runs.groupby("label").seed.nunique()})
    many = lambda n: number(n[0], "seed") if len(n) == 1 else f"{n[0]} to {n[-1]} seeds"
    seeds = "; ".join(f"{SHOWN[s]}: {number(runs.target.nunique(), 'domain')}, {many(several(runs))}"
                      for s, runs in there.items())
    ran = ", ".join(f"{runs.method.nunique()} ({SHOWN[s]})" for s, runs in there.items())
    of_domains = DOMAINS.format(over_domains(there), said_of_all(tables))
    yield TESTS.format(seeds, len(METHODS.names()), ran, of_domains)
    of = {d: resolve("common", dataset=d, method="fedavg") for d in ("office_caltech10", "pacs")}
    protocol = PROTOCOL.format(**of["office_caltech10"], pacs=of["pacs"]["backbone"])
    yield ADAPTED.format(protocol, processors(there), said_of_steps(there), at_rest(there),
                         said_of_rest(there))


def shown(store):
    "The main comparisons side by side, on what and how long they ran, by which commands; [] of none."
    everything = common_runs(store, {LONGER: ("fedavg", dict(local_epochs=3))})[0]
    groups = {s: g[g.label != LONGER] for s, g in everything.items()}
    there = {s: groups[s] for s in SHOWN if s in groups}
    for s in SHOWN:
        like = [g for g in groups if g.startswith(s)]
        if like and s not in there: raise ValueError(f"{s} is {like} now")
    if not there: return
    tables = {s: table(deployed(runs)) for s, runs in there.items()}
    lines, more = across(tables), longer({s: everything[s] for s in there})
    yield which_one(lines, more, indoors(groups))
    yield READING
    yield from table_of(lines, more, copied(everything))
    yield from folded("How it was tested, under which protocol, and what to mind", *minded(there, tables))
    whole = {s: lines.label[(lines.setting == s) & (lines.text != "")] for s in there}
    made = [line for s, runs in there.items() for line in made_by(s, runs[runs.label.isin(whole[s])])]
    for s in more.setting:
        made += made_by(s, everything[s].query("label == @LONGER"), local_epochs=3)
    took, on = spent(pd.concat(everything[s] for s in there).record)
    yield from folded(f"{took}, on {on}; and by which commands", *made)


def searched():
    "What the report on tuned methods found, and to unfold its table; [] before there is one."
    if not TUNED.exists(): return
    rows = pd.read_csv(TUNED.with_suffix(".csv")).method.str.split(" (tuned)", regex=False).str[0]
    yield "**With searched values**, on digits, by Student's t at 5 %, corrected after Holm:\n"
    yield TUNED.with_name("ours_tuned_verdicts.md").read_text()
    said = "The table, and how the values were found"
    yield from folded(said, SEARCHED.format(", ".join(dict.fromkeys(rows))), TUNED.read_text())


def ledger_line(records):
    "The counts of the ledger, in words."
    book = ledger(records)
    c, early = counts(book).loc["all"], int(book.at_least.notna().sum())
    few = "; ".join(f"{c[k]:,} {k}" for k in ("reproduced", "not reproduced", "not run"))
    said = (f"Of the {c.numbers:,} numbers that four of the papers print, FedSB's not among them "
            f"([ledger](reports/ledger.csv)): {few}.")
    exact = book[book.metric.str.contains("acc")].state.value_counts()
    by_state = "; ".join(f"{exact.get(k, 0):,} {k}" for k in c.index[:3])
    said += f" Of accuracies alone: {by_state}; the rest are sizes, traffic, FLOPs, rounds and seconds."
    whole = book[book.metric.str.contains("acc") & book.at_least.isna() & (book.state != "not run")]
    left = int(whole.why.str.contains(OPEN).sum())
    said += (f" Of the {len(whole)} accuracies that whole runs decide, {left} lie so near the line that "
             "three seeds leave both answers open.")*bool(left)
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
