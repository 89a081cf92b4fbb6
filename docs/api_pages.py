"""Reference pages from the docstrings of fdgnb/, read from the sources: nothing is imported.

A docstring is plain prose with names in backquotes; it is shown word by word.
"""
import ast, re
from pathlib import Path
from notebook_pages import NBS, ROOT, place

PACKAGE = ROOT/"fdgnb"
# what a docstring means as code or as mathematics, and what Markdown would read into the rest of it
MEANT = re.compile(r"(``[^`]+``|`[^`\n]+`|\$[^\s$][^$\n]*\$)")
SPECIAL = re.compile(r"([\\*_<>\[\]$#|~{}^])")


def dotted(path): return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def parse(path):
    "The syntax tree of a module, with its lines."
    text = path.read_text()
    tree = ast.parse(text)
    tree.lines = text.splitlines()
    return tree


def trees():
    "{dotted name: syntax tree} of every module that has something public, and of the package's face."
    files = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "_modidx.py")
    found = {dotted(p): parse(p) for p in files}
    return {m: t for m, t in found.items() if m == "fdgnb" or public(t)}


def assigned(tree, name):
    "The value of a top-level assignment to a name; None if there is none."
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name: return node.value


def registered(tree):
    "The classes of a module that are methods, found by their key."
    marks = lambda node: [ast.unparse(d) for d in node.decorator_list]
    return [n.name for n in tree.body if isinstance(n, ast.ClassDef) and any(m.startswith("method(") for m in marks(n))]


def public(tree):
    "The names that a module lists as its own, and its methods."
    value = assigned(tree, "__all__")
    listed = ast.literal_eval(value) if value is not None else []
    return list(dict.fromkeys([*listed, *registered(tree)]))


def plain(text):
    "A docstring as Markdown that shows it word by word; `code` and `$mathematics$` are set."
    parts = MEANT.split(text)
    escaped = [p if i % 2 else SPECIAL.sub(r"\\\1", p) for i, p in enumerate(parts)]
    lines = [l.strip() for l in "".join(escaped).split("\n")]
    return re.sub(r"^(\d+)([.)])", r"\1\\\2", "\n".join(lines), flags=re.M)


def signature(node):
    "`name(arguments)` of a function, `name(arguments of __init__)` of a class."
    if isinstance(node, ast.FunctionDef): return f"{node.name}({ast.unparse(node.args)})"
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init: return f"{node.name}({re.sub(r'^self(, )?', '', ast.unparse(init.args))})"
    return node.name


def described(kind, signed, body, module, fence):
    "One entry of the Python domain."
    ticks = "`"*fence
    return f"{ticks}{{py:{kind}}} {signed}\n:module: {module}\n\n{body}\n{ticks}\n"


def options(node):
    "The declared hyper-parameters of a class `Hyper`, or of a class of such: a row for each."
    inner = [n for n in node.body if isinstance(n, ast.ClassDef) and n.name == "Hyper"]
    rows = [row for n in [node, *inner] for row in n.body if isinstance(row, ast.AnnAssign)]
    cell = lambda s: re.sub(r"(?<!\\)\|", r"\\|", s.replace("\n", " "))
    out = []
    for r in rows:
        call = r.value if isinstance(r.value, ast.Call) else None
        if getattr(getattr(call, "func", None), "id", "") not in ("hp", "switch", "variant"): continue
        texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        keys = {k.arg: ast.unparse(k.value) for k in call.keywords}
        default = keys.get("paper") or (ast.unparse(call.args[0]) if call.args else "")
        if texts and default == repr(texts[-1]): default = ""
        cells = [f"`{r.target.id}`", default and f"`{default}`", plain(texts[-1]) if texts else ""]
        out.append(f"| {' | '.join(map(cell, cells))} |")
    if not out: return ""
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *out, ""])


def meaning(node):
    "A function's docstring; of one without, its body, if that is one short statement."
    if text := ast.get_docstring(node): return plain(text)
    body = ast.unparse(node.body[0]) if len(node.body) == 1 else ""
    return f"`{body}`" if body and len(body) <= 100 and not {"`", "\n"} & set(body) else ""


def parameters(node, tree):
    "The parameters of a function that have a comment: a row for each."
    rows, spec = [], node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = dict(zip(map(id, reversed(positional)), reversed(spec.defaults)))
    defaults |= {id(a): d for a, d in zip(spec.kwonlyargs, spec.kw_defaults) if d is not None}
    stars = [a for a in (spec.vararg, spec.kwarg) if a]
    for arg in sorted([*positional, *spec.kwonlyargs, *stars], key=lambda a: a.lineno):
        comment = re.search(r"\s# (.*)$", tree.lines[arg.lineno - 1])
        if not comment: continue
        kind = f"`{ast.unparse(arg.annotation)}`" if arg.annotation else ""
        default = f"`{ast.unparse(defaults[id(arg)])}`" if id(arg) in defaults else ""
        cells = [f"`{arg.arg}`", kind, default, plain(comment[1].strip())]
        rows.append("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", c) for c in cells) + " |")
    if not rows: return ""
    return "\n".join(["", "| parameter | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def member(node, owner, module):
    "A method or property of a class."
    marks = [ast.unparse(d) for d in node.decorator_list]
    name, text, args = f"{owner}.{node.name}", meaning(node), ast.unparse(node.args)
    if any("property" in m for m in marks): return described("property", name, text, module, 3)
    if "staticmethod" not in marks: args = re.sub(r"^\w+(, )?", "", args)
    return described("method", f"{name}({args})", text, module, 3)


def entry(node, module, tree):
    "A function or class with its docstring and parameters; of a class, its options and its methods."
    text = plain(ast.get_docstring(node) or "")
    if isinstance(node, ast.FunctionDef):
        return described("function", signature(node), f"{text}\n{parameters(node, tree)}", module, 3)
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    inside = [f"{text}\n", parameters(init, tree) if init else "", options(node)]
    members = [n for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    first = {n.name: n for n in reversed(members)}                    # of a property, not its setter
    inside += [member(n, node.name, module) for n in members if first[n.name] is n]
    return described("class", signature(node), "\n".join(inside), module, 4)


def page_in(path):
    "The notebook that a module comes from, or None."
    m = re.search(r"File to edit: (\S+\.ipynb)", path.read_text())
    return (path.parent/m[1]).resolve() if m and (path.parent/m[1]).exists() else None


def module_page(module, tree):
    "The reference of one module as Markdown."
    path = PACKAGE.parent/Path(*module.split("."))
    path = path/"__init__.py" if path.is_dir() else path.with_suffix(".py")
    page, names = page_in(path), public(tree)
    nodes = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    documented = [n for n in names if n in nodes and ast.get_docstring(nodes[n])]
    lines = [f"# {module}", f"> {plain(ast.get_docstring(tree) or module)}".replace("\n", " "), ""]
    if page: lines += [f"Derived and checked in [{page.relative_to(NBS)}](../{place(page)}).", ""]
    lines += [f"```{{py:module}} {module}\n```", ""]
    lines += [entry(nodes[n], module, tree) for n in documented]
    rest = [n for n in names if n not in documented]
    if rest: lines += ["Also: " + ", ".join(f"`{n}`" for n in rest) + ".", ""]
    return "\n".join(lines)


def face(tree):
    "{public name of the package: dotted name} from the table of its lazy imports."
    where = assigned(tree, "_where")
    return {k.arg: f"fdgnb.{ast.literal_eval(k.value)}.{k.arg}" for k in getattr(where, "keywords", [])}


def index_page(found):
    "The front page of the reference: what `import fdgnb` offers, then every module by folder."
    lines = ["# Reference", "> What the notebooks export, from its docstrings.", ""]
    lines += ["## The package's face", "", "| name | |", "|---|---|"]
    known = lambda m, n: n in public(found.get(m, ast.Module([], [])))
    for name, whole in sorted(face(found["fdgnb"]).items(), key=lambda kv: kv[0].lower()):
        module = whole.rpartition(".")[0]
        if known(module, name): lines.append(f"| `fdgnb.{name}` | [{module}]({module}.md) |")
    folders = {}
    for m in found:
        if m != "fdgnb": folders.setdefault(m.split(".")[1] if m.count(".") > 1 else "core", []).append(m)
    for folder in sorted(folders, key=lambda f: (f != "core", f)):
        lines += ["", f"## {folder.capitalize()}", "", "| module | |", "|---|---|"]
        for m in folders[folder]:
            text = plain(ast.get_docstring(found[m]) or "").replace("\n", " ")
            lines.append(f"| [{m}]({m}.md) | {text} |")
    toc = sorted(m for ms in folders.values() for m in ms)
    entries = [f"{m.removeprefix('fdgnb.')} <{m}>" for m in toc]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *entries, "```", ""])


def pages():
    "{path below the site's sources: Markdown}."
    found = trees()
    out = {f"api/{m}.md": module_page(m, t) for m, t in found.items() if m != "fdgnb"}
    return out | {"api/index.md": index_page(found)}
