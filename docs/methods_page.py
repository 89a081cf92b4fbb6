"""All methods on one page, a line each: read from the registry, the measured costs and the comparison's records."""
import html, json, re
import pandas as pd
import results_page
from notebook_pages import NBS, title_of

MEASURED = NBS/"tables/03_overview.ipynb"                           # its table: what a method keeps, sends and computes
READ = """*Bytes* and *FLOPs* of a round are multiples of FedAvg's, measured on a small network
([how](../tables/03_overview.ipynb)). *Better in*: the settings of [the comparison](../tables/16_ours.ipynb) in which
the method is better than FedAvg."""


def cells(row):
    "The texts of a row of HTML."
    return [html.unescape(re.sub(r"<[^>]+>", "", c)).strip() for c in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]


def measured(path=MEASURED):
    "{key: {column: text}} of the table that the overview's page has printed; empty where it has none."
    if not path.exists(): return {}
    for cell in json.loads(path.read_text())["cells"]:
        for output in cell.get("outputs", []):
            shown = "".join(output.get("data", {}).get("text/html", []))
            rows = [cells(r) for r in re.findall(r"<tr.*?</tr>", shown, re.S)]
            head = next((r for r in rows if {"down", "up", "flops"} <= {*r}), None)
            if head: return {r[0]: dict(zip(head[1:], r[1:])) for r in rows if len(r) == len(head)}
    return {}


def amounts(text):
    "{kind: size in units of the model} of 'model 1, stats 0.997, scalars'."
    found = [part.rpartition(" ") for part in text.split(", ") if part]
    return {(kind or size): float(size) if kind and re.match(r"[\d.]+$", size) else 0. for kind, _, size in found}


def sends(line):
    "What travels, in a word: 'model', 'part of the model', 'model, stats', 'nothing'."
    both = [amounts(line.get(way, "")) for way in ("down", "up")]
    kinds = [k for k in dict.fromkeys(k for b in both for k in b) if k not in ("model", "scalars")]
    model = [b.get("model", 0.) for b in both]
    if not any(model): return "nothing"
    first = "part of the model" if min(model) < .95 else "larger model" if max(model) > 1.05 else "model"
    return ", ".join([first, *kinds])


def traffic(line):
    "Bytes of a round, times FedAvg's, which sends the model down and up."
    total = sum(sum(amounts(line.get(way, "")).values()) for way in ("down", "up"))
    return f"{total/2:.2g}"


def cost(line):
    "How many FLOPs a round takes, in three classes."
    if not line.get("flops"): return ""
    flops = float(line["flops"])
    return "as FedAvg" if flops <= 1.15 else "up to 2 times" if flops <= 2.05 else "more"


def describe(key, cls, page, line, records):
    "The row of a method."
    title, _ = title_of(json.loads((NBS/page).read_text()))
    doc = (cls.__doc__ or "").strip().split("\n")[0]
    own = records[records.method.str.partition(" (")[0] == key] if len(records) else records
    better = own.setting[own.verdict.str.startswith("better")] if len(own) else []
    link = f'<a href="../{page.replace(".ipynb", ".html")}"><code>{key}</code></a>'
    out = {"method": link, "idea": doc, "subject": title if page.startswith("methods/") else "FedAvg"}
    out |= {"sends": sends(line) if line else ""}
    out |= {"target data": line.get("target") or ("in training" if cls.uses_target else "none")}
    out |= {"cost": cost(line), "bytes": traffic(line) if line else ""}
    out |= {"FLOPs": line.get("flops", ""), "model": line.get("model", "")}
    return out | {"better in": ", ".join(dict.fromkeys(better))}


def rows():
    "DataFrame of all registered methods, by their pages."
    from fdgnb.federation.compose import METHODS
    from fdgnb.tables.overview import home
    lines, records = measured(), results_page.read_if(results_page.REPORTS/"comparison/gains.csv")
    keys = sorted(METHODS.names(), key=lambda k: (home(k), k))
    return pd.DataFrame([describe(k, METHODS.get(k), home(k), lines.get(k, {}), records) for k in keys])


def page():
    "The page as Markdown."
    found = rows()
    shown = results_page.table(found, "methods", filters=["subject", "sends", "target data", "cost", "model"],
                               length=-1, hidden=["cost", "model"])
    return results_page.page(
        "All methods", f"The {len(found)} methods of the registry, a line each.",
        "Methods add up: `\"fedprox+ga\"` is a method too ([how](../federation/03_compose.ipynb)).",
        results_page.raw(shown), f":::{{container}} caption\n{READ}\n:::", indexed=False)
