"""The reference by task, from the docstrings of fdgnb/, read from the sources: nothing is imported.

It has the names that a module lists as public, each once. A docstring is plain prose with names in backquotes; it is
shown word by word.
"""
import ast, json, re
from functools import cache
from pathlib import Path
from notebook_pages import CHECKING, NBS, ROOT, directives, place, text_of, title_of

PACKAGE = ROOT/"fdgnb"
# a page's name, what one does with it, and the modules it has, the first ones first; the longest name decides
TASKS = {
    "train": ("Train", "One run: arguments, options, selection rules, records, callbacks.",
              "runs.fit runs.records runs.finetune settings runs core models federation.rounds federation.engine "
              "federation.node __main__"),
    "data": ("Data", "Data sets by name and of your own, partitions, random changes of images.",
             "data.own data.folders data.catalogue data.domain data"),
    "methods": ("Methods", "What a method is made of, and the options of every method.",
                "federation.loop federation.compose vectors federation methods"),
    "compare": ("Compare", "Grids of runs, stores, tables and statistics.", "experiments tables"),
    "deploy": ("Deploy", "The same run on other machines, over Flower.", "flower.commands flower")}
# what a docstring means as code or as mathematics, and what Markdown would read into the rest of it
MEANT = re.compile(r"(``[^`]+``|`[^`\n]+`|\$[^\s$][^$\n]*\$)")
SPECIAL = re.compile(r"([\\*_<>\[\]$#|~{}^])")
VARIANT = "paper, the default: formulas as printed; released: what the authors' code computes"


def dotted(path): return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def parse(path):
    "The syntax tree of a module, with its lines."
    tree = ast.parse(path.read_text())
    tree.lines = path.read_text().splitlines()
    return tree


@cache
def parsed(): return {dotted(p): parse(p) for p in sorted(PACKAGE.rglob("*.py")) if p.name != "_modidx.py"}


@cache
def trees():
    "{dotted name: syntax tree} of every module that has something public, and of the package's face."
    return {m: t for m, t in parsed().items() if m == "fdgnb" or public(t)}


@cache
def classes():
    "{name: (class, the tree of its module)} of the whole package."
    return {n.name: (n, t) for t in parsed().values() for n in t.body if isinstance(n, ast.ClassDef)}


def lineage(node, tree):
    "(class, tree) of a class and of those above it that have no entry of their own, whose members it shows."
    above = [classes()[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in classes()]
    return [(node, tree), *(x for n, t in above if n.name not in documented(t) for x in lineage(n, t))]


def task_of(module):
    "(task, place among its modules) of a module; what no task names is a part of training."
    inside = module.removeprefix("fdgnb.")
    named = [(len(name), task, i) for task, (*_, names) in TASKS.items() for i, name in enumerate(names.split())
             if inside == name or inside.startswith(f"{name}.")]
    _, task, i = max(named, default=(0, "train", 99))
    return task, i


def modules(): return {m for m in trees() if m != "fdgnb"}


def assigned(tree, name):
    "The value of a top-level assignment to a name; None if there is none."
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name: return node.value


def registered(tree):
    "The classes of a module that are methods, found by their key."
    return [n.name for n in tree.body if isinstance(n, ast.ClassDef) and method_key(n)]


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


def arguments(spec):
    "Arguments without their types, which stand in the table of the parameters."
    spec = ast.parse(f"def f({ast.unparse(spec)}): pass").body[0].args
    stars = [a for a in (spec.vararg, spec.kwarg) if a]
    for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *stars]: arg.annotation = None
    return ast.unparse(spec)


def signature(node):
    "`name(arguments)` of a function, `name(arguments of __init__)` of a class."
    init = node if isinstance(node, ast.FunctionDef) else init_of(node)
    return f"{node.name}({re.sub(r'^self(, )?', '', arguments(init.args))})" if init else node.name


def init_of(node): return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def described(kind, signed, body, module, fence):
    "One entry of the Python domain."
    ticks = "`"*fence
    return f"{ticks}{{py:{kind}}} {signed}\n:module: {module}\n\n{body}\n{ticks}\n"


def declaring(node):
    "The classes that declare a class's options: itself, its `Hyper`, and those from which that, or else it, inherits."
    inner = [n for n in node.body if isinstance(n, ast.ClassDef) and n.name == "Hyper"]
    given = [n.value for n in node.body if isinstance(n, ast.Assign) and "Hyper" in ast.unparse(n.targets[0])]
    bases = [*given, *(b for n in inner for b in n.bases)] if given or inner else node.bases
    above = [classes()[w][0] for b in bases for w in re.findall(r"\w+", ast.unparse(b)) if w in classes()]
    return [node, *inner, *(c for n in above for c in declaring(n))]


def options(node):
    "The declared options of a class: a row for each, inherited ones first."
    rows = {r.target.id: r for c in reversed(declaring(node)) for r in c.body if isinstance(r, ast.AnnAssign)}
    cell = lambda s: re.sub(r"(?<!\\)\|", r"\\|", s.replace("\n", " "))
    out = []
    for r in rows.values():
        call = r.value if isinstance(r.value, ast.Call) else None
        if getattr(getattr(call, "func", None), "id", "") not in ("hp", "switch", "variant"): continue
        texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        keys = {k.arg: ast.unparse(k.value) for k in call.keywords}
        default = keys.get("paper") or (ast.unparse(call.args[0]) if call.args else "")
        if texts and default == repr(texts[-1]): default = ""
        among = f": one of `{keys['choices']}`" if "choices" in keys else ""
        cells = [f"`{r.target.id}`", default and f"`{default}`", (plain(texts[-1]) if texts else VARIANT) + among]
        out.append(f"| {' | '.join(map(cell, cells))} |")
    if not out: return ""
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *out, ""])


def typed(annotation): return f"`{ast.unparse(annotation).strip(chr(39))}`" if annotation else ""


def comment(line, tree):
    "The comment of a line, as Markdown."
    found = re.search(r"\s# (.*)$", tree.lines[line - 1])
    return plain(found[1].strip()) if found else ""


def parameters(node, tree):
    "The parameters of a function that have a type or a comment, and what it returns: a row for each."
    rows, spec = [], node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = dict(zip(map(id, reversed(positional)), reversed(spec.defaults)))
    defaults |= {id(a): d for a, d in zip(spec.kwonlyargs, spec.kw_defaults) if d is not None}
    stars = [a for a in (spec.vararg, spec.kwarg) if a]
    for arg in sorted([*positional, *spec.kwonlyargs, *stars], key=lambda a: a.lineno):
        said = arg.lineno > node.lineno and comment(arg.lineno, tree)
        default = f"`{ast.unparse(defaults[id(arg)])}`" if id(arg) in defaults else ""
        if said or arg.annotation: rows.append([f"`{arg.arg}`", typed(arg.annotation), default, said or ""])
    if node.returns: rows.append(["returns", typed(node.returns), "", comment(node.returns.end_lineno, tree)])
    if not rows: return ""
    rows = ["| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", c) for c in row) + " |" for row in rows]
    return "\n".join(["", "| parameter | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def member(node, owner, module, tree):
    "A method or property of a class."
    marks = [ast.unparse(d) for d in node.decorator_list]
    name, text, rows = f"{owner}.{node.name}", plain(ast.get_docstring(node)), parameters(node, tree)
    if any("property" in m for m in marks): return described("property", name, text, module, 3)
    args = arguments(node.args)
    if "staticmethod" not in marks: args = re.sub(r"^\w+(, )?", "", args)
    return described("method", f"{name}({args})", f"{text}\n{rows}", module, 3)


def method_key(node):
    "The key under which a class is registered as a method; None if it is not."
    marks = [d for d in node.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func) == "method"]
    return ast.literal_eval(marks[0].args[0]) if marks else None


def entry(node, module, tree, shown):
    "A function or class, its parameters and an example; a class with options, and its functions unless it has a key."
    text = plain(ast.get_docstring(node) or "")
    if isinstance(node, ast.FunctionDef):
        return described("function", signature(node), f"{text}\n{parameters(node, tree)}\n{shown}", module, 6)
    key, init = method_key(node), init_of(node)
    rows = parameters(init, tree) if init else ""
    inside = [f"`\"{key}\"`: {text}\n" if key else f"{text}\n", rows, options(node)]
    members = [(n, t) for of, t in lineage(node, tree) for n in of.body if isinstance(n, ast.FunctionDef)
               and not n.name.startswith("_") and not key and ast.get_docstring(n)]
    first = {n.name: n for n, _ in reversed(members)}                 # of a property, not its setter
    inside += [member(n, node.name, module, t) for n, t in members if first[n.name] is n]
    return described("class", node.name if key else signature(node), "\n".join([*inside, shown]), module, 7)


def page_in(module):
    "The notebook that a module comes from, or None."
    path = PACKAGE.parent/Path(*module.split("."))
    path = path/"__init__.py" if path.is_dir() else path.with_suffix(".py")
    m = re.search(r"File to edit: (\S+\.ipynb)", path.read_text())
    return (path.parent/m[1]).resolve() if m and (path.parent/m[1]).exists() else None


def documented(tree):
    "{public name: its function or class} of a module: what `import fdgnb` offers, classes, functions with types."
    nodes = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(n)}
    is_told = lambda n: isinstance(nodes[n], ast.ClassDef) or parameters(nodes[n], tree)
    first = [n for n in face(trees()["fdgnb"]) if n in nodes and n in public(tree)]
    return {n: nodes[n] for n in [*first, *public(tree)] if n in first or n in nodes and is_told(n)}


@cache
def read(page): return json.loads(page.read_text())


@cache
def examples(page):
    "The code cells of a page that show how something is used: not exported, not hidden, and short."
    cells = [c for c in read(page)["cells"] if c["cell_type"] == "code"]
    shown = [source for named, source in (directives(text_of(c)) for c in cells)
             if not {"export", "exporti", "exports", "hide"} & named.keys()]
    return [source for source in shown if source.count("\n") < 16]


def example(name, node, page):
    "A cell that calls a name, or fits a method by its key, rather without checks; '' where there is none."
    key = method_key(node) if isinstance(node, ast.ClassDef) else None
    calls = rf"(?<![\w.]){name}\(|\bfdgnb\.{name}\("
    wanted = re.compile(rf'{calls}|fit\("{key}"' if key else calls)
    pages = filter(None, (page, *(NBS/f"{stem}.ipynb" for stem in ("own_data", "add", "index"))))
    found = [(source, where) for where in pages for source in examples(where) if wanted.search(source)]
    if not found: return ""
    is_face = name in face(trees()["fdgnb"])                        # its first example is one of use
    source, where = min(found, key=lambda at: (bool(CHECKING.search(at[0])), is_face and at[1] == page))
    return f"Example, from [{title_of(read(where))[0]}](../{place(where)}):\n\n`````python\n{source}\n`````\n"


def section(module, tree):
    "The reference of one module."
    page, found = page_in(module), documented(tree)
    lines = [f"## {module}", "", f"```{{py:module}} {module}\n```", "",
             plain(ast.get_docstring(tree) or "").replace("\n", " "), ""]
    if page: lines += [f"Notebook: [{title_of(read(page))[0]}](../{place(page)})", ""]
    lines += [entry(node, module, tree, example(name, node, page)) for name, node in found.items()]
    rest = [n for n in public(tree) if n not in found]
    if rest: lines += ["Also: " + ", ".join(f"`{n}`" for n in rest) + ".", ""]
    return "\n".join(lines)


def face(tree):
    "{public name of the package: dotted name} from the table of its lazy imports."
    where = assigned(tree, "_where")
    return {k.arg: f"fdgnb.{ast.literal_eval(k.value)}.{k.arg}" for k in getattr(where, "keywords", [])}


def of_task(task):
    "The modules of a task, in its order."
    return [m for _, m in sorted((i, m) for m in modules() for t, i in [task_of(m)] if t == task)]


def summary(module, name):
    "The first sentence of a name's docstring."
    first = ast.get_docstring(documented(trees()[module])[name]).split("\n\n")[0].replace("\n", " ")
    return plain(re.split(r"(?<=\w[.:;]) ", first)[0]).rstrip(":;")


def names_of(task):
    "The names of a task: what `import fdgnb` offers first, then the others, by module."
    names = {whole: name for name, whole in face(trees()["fdgnb"]).items()}
    every = [(m, n) for m in of_task(task) for n in documented(trees()[m])]
    row = lambda m, n, shown: f"| {{py:obj}}`{shown} <{m}.{n}>` | {summary(m, n)} |"
    first = [row(m, n, f"fdgnb.{n}") for m, n in every if f"{m}.{n}" in names]
    rest = [row(m, n, f"{m.removeprefix('fdgnb.')}.{n}") for m, n in every if f"{m}.{n}" not in names]
    return first, rest


def index_page():
    "The front page of the reference: the tasks, each with the names that `import fdgnb` offers."
    lines = ["---", "nosearch: true", "---", "", "# Reference", "> Every public name, by what one does with it.", ""]
    for task, (title, what, _) in TASKS.items():
        first, rest = names_of(task)
        lines += [f"## {title}", "", f"{what} [All {len(first) + len(rest)} names]({task}.md)", ""]
        shown = first or [r for r in rest if task == "deploy" and "flower.commands" in r] or rest[:8]
        lines += ["| name | |", "|---|---|", *shown, ""]
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *TASKS, "```", ""])


def task_page(task):
    "All public names of a task."
    title, what, _ = TASKS[task]
    head = f"---\nnosearch: true\n---\n\n# {title}\n> {what}\n\n"
    return head + "\n".join(section(m, trees()[m]) for m in of_task(task))


def pages():
    "{path below the site's sources: Markdown}."
    return {f"api/{task}.md": task_page(task) for task in TASKS} | {"api/index.md": index_page()}
