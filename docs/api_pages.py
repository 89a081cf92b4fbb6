"""The reference by task: docstrings and comments from the sources of fdgnb/, values from the package.

It has the names that a module lists as public, each once: first what users need, by task, then the rest, by module. A
docstring is plain prose with names in backquotes; it is shown word by word.
"""
import ast, inspect, json, re, sys
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from notebook_pages import NBS, ROOT, directives, place, text_of, title_of

PACKAGE = ROOT/"fdgnb"
# a page's name, what one does with it, the modules it has, and sections for users: "module names; module names"
TASKS = {
    "train": ("Train", "One run: arguments, options, selection rules, records, callbacks.", "runs settings core models "
              "federation.rounds federation.engine federation.node __main__", {
                  "Run and predict": "runs.fit fit Run",
                  "Read a run from its folder": "runs.records load; runs.selected Kept; runs.records Saved costs",
                  "Fine-tune for a new site": "runs.finetune finetune Tuned",
                  "Settings and protocols": "settings hp Settings; runs.protocols PROTOCOLS",
                  "Networks": "models MODELS get",
                  "Score and select rounds": "runs.metrics METRICS RULES rules_table",
                  "Watch a run": "runs.callbacks Callback Metrics Patience TensorBoard WandB MLflow",
                  "Errors": "core FdgnbError"}),
    "data": ("Data", "Data sets by name and of your own, partitions, random changes of images.", "data", {
        "Load your own data": "data.folders from_folder; data.own from_arrays from_torch from_texts from_table; "
                              "data.features encode_images",
        "Load a data set by name": "data.catalogue get_dataset list_datasets",
        "Look into a data set": "data.domain Dataset Domain",
        "Change training images": "data.augment AUGMENTATIONS",
        "Make clients of domains": "data.partitions PARTITIONS"}),
    "methods": ("Methods", "What a method is made of, and the options of every method.", "methods federation vectors", {
        "Write a method": "federation.loop Method Client Server; federation.compose method helper list_methods",
        "The five systems": "methods.fedsb FedSB; methods.ga GA; methods.fedka FedKA; methods.fedbr FedBR; "
                            "methods.fdse FDSE"}),
    "compare": ("Compare", "Grids of runs, stores, tables and statistics.", "experiments tables", {
        "Plan and run a grid": "experiments.grid grid; experiments.execution run; experiments.search search",
        "Compare methods": "experiments.table table Table; experiments.statistics verdicts gain_of mean_ranks",
        "Keep records": "experiments.store Store results"}),
    "deploy": ("Deploy", "The same run on other machines, over Flower.", "flower", {
        "Set up and run a federation": "flower.commands make_federation make_key start_server start_site "
                                       "run_federated"})}
# what a docstring means as code or as mathematics, and what Markdown would read into the rest of it
MEANT = re.compile(r"(``[^`]+``|`[^`\n]+`|\$[^\s$][^$\n]*\$)")
FIRST = {}                                                          # {class: who shows its members}
SPECIAL = re.compile(r"([\\*_<>\[\]$#|~{}^])")
TESTING = re.compile(r"\bassert\b|\btest_\w+\(|slice_of|SimpleNamespace|\.testing\.|refusal\(")     # is no example


@cache
def parsed():
    "{dotted name: syntax tree, with that name, its path and lines} of every module."
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        tree.module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree.path, tree.lines, trees[tree.module] = path, path.read_text().splitlines(), tree
    return trees


def value_of(name, module):
    "What a name means in a module, own or imported there."
    sys.path[:] = dict.fromkeys([*sys.path, str(ROOT)])
    return getattr(import_module(module), name, None)


def lineage(cls):
    "[(class, its syntax tree, its module's)] of a class and of those above it, but what another entry shows."
    ours = {c: parsed()[c.__module__] for c in cls.__mro__ if c.__module__ in parsed()}
    shown = [c for c in ours if c is not cls and c.__name__ in documented(c.__module__)]
    return [(c, n, t) for c, t in ours.items() if not any(issubclass(other, c) for other in shown)
            for n in t.body if isinstance(n, ast.ClassDef) and n.name == c.__name__]


def chosen(task):
    "{section: its names, as (module, name)} of a task."
    split = lambda words: [(f"fdgnb.{m}", n) for m, *names in map(str.split, words.split("; ")) for n in names]
    return {title: split(words) for title, words in TASKS[task][3].items()}


def modules(): return {m for m in parsed() if documented(m)}


def public(tree):
    "The names that a module lists as its own, and the classes that are methods, by their key."
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"]
    methods = [n.name for n in tree.body if isinstance(n, ast.ClassDef) and method_key(n)]
    return list(dict.fromkeys([*(n for v in lists if isinstance(v, ast.List) for n in ast.literal_eval(v)), *methods]))


def plain(text):
    "A docstring as Markdown that shows it word by word; `code` and `$mathematics$` are set, and what follows >>>."
    text, *shown = re.split(r"\n\s*(?=>>> )", text, maxsplit=1)
    parts = MEANT.split(text)
    escaped = [p if i % 2 else SPECIAL.sub(r"\\\1", p) for i, p in enumerate(parts)]
    lines = [l.strip() for l in "".join(escaped).split("\n")]
    text = re.sub(r"^(\d+)([.)])", r"\1\\\2", "\n".join(lines), flags=re.M)
    return "\n".join([text, *(f"\n~~~pycon\n>>> import fdgnb\n{code}\n~~~" for code in shown)])


def arguments(spec):
    "Arguments without their types, which stand in the table of the parameters."
    spec = ast.parse(f"def f({ast.unparse(spec)}): pass").body[0].args
    for arg in ast.walk(spec): arg.annotation = None
    return ast.unparse(spec)


def signature(node, tree):
    "`name(arguments)` of a function, `name(arguments of __init__, or fields)` of a class."
    init = node if isinstance(node, ast.FunctionDef) else init_of(node)
    if init: return f"{node.name}({re.sub(r'^self(, )?', '', arguments(init.args))})"
    cls = value_of(node.name, tree.module)
    is_plain = "__dataclass_fields__" in vars(cls) and not options(cls)
    return f"{node.name}({', '.join(f.name for f in fields(cls))})" if is_plain else node.name


def init_of(node): return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def described(kind, signed, body, module, fence):
    "One entry of the Python domain."
    ticks = "`"*fence
    return f"{ticks}{{py:{kind}}} {signed}\n:module: {module}\n\n{body}\n{ticks}\n"


def table_of(head, rows):
    "A Markdown table, without the columns that are empty; '' without rows."
    there = [i for i, _ in enumerate(head) if any(row[i] for row in rows)]
    head, rows = [head[i] for i in there], [[row[i] for i in there] for row in rows]
    cell = lambda s: re.sub(r"(?<!\\)\|", r"\\|", str(s).replace("\n", " "))
    lines = [head, ["---"]*len(head), *([cell(c) for c in row] for row in rows)]
    return "\n".join(["", *(f"| {' | '.join(line)} |" for line in lines), ""]) if rows else ""


def options(cls):
    "The declared options of a class, or of its `Hyper`: a row for each, inherited ones first."
    cls, rows = getattr(cls, "Hyper", cls), []
    for f in fields(cls) if is_dataclass(cls) else ():
        if "doc" not in f.metadata: continue
        default, choices = f.metadata.get("paper", f.default), f.metadata["choices"] or ()
        text = plain(f.metadata["doc"].removesuffix("; None: as the variant"))
        if any(isinstance(c, str) for c in choices): text += ": one of " + ", ".join(f"`{c}`" for c in choices)
        rows.append([f"`{f.name}`", "" if default is MISSING else f"`{default!r}`", text])
    return table_of(["option", "default", "meaning"], rows)


def attributes(found):
    "What the bodies of classes declare and comment, but options: fields, class attributes, properties of one line."
    rows = {}
    for n, tree in ((n, tree) for _, node, tree in found for n in node.body):
        if not isinstance(n, (ast.Assign, ast.AnnAssign)): continue
        name = ast.unparse(n.target if isinstance(n, ast.AnnAssign) else n.targets[0])
        call = n.value if isinstance(n.value, ast.Call) else None
        kind, said = ast.unparse(call.func) if call else "", comment(n.lineno, tree)
        if "property" in kind: said = next((plain(k.value.value) for k in call.keywords if k.arg == "doc"), said)
        if not said or name[0] in "_(" or kind in ("hp", "switch", "variant"): continue
        default = f"`{ast.unparse(n.value)}`" if n.value and not call and ast.unparse(n.value) != name else ""
        rows.setdefault(name, [f"`{name}`", typed(getattr(n, "annotation", None)), default, said])
    return table_of(["attribute", "type", "default", "meaning"], list(rows.values()))


def hooks(node):
    "Of every hook of `Method` what it gets, does and returns, FedAvg's, and methods to read: the loop's own table."
    said = {n.name: plain(ast.get_docstring(n) or "") for n in node.body if isinstance(n, ast.FunctionDef)}
    text = next(t for t in (text_of(c) for c in read(NBS/"federation/01_loop.ipynb")["cells"]) if "| when | hook" in t)
    lines = [re.split(r" ?\| ?", line)[1:-1] for line in text.split("\n") if re.match(r"\|.*`\w+\(", line)]
    rows = [[hook.strip("– "), said[re.search(r"`(\w+)", hook)[1]], fedavg, by] for _, hook, fedavg, by in lines]
    return table_of(["hook, and what it gets", "what it does, or returns", "FedAvg", "overridden by"], rows)


def typed(annotation): return f"`{ast.unparse(annotation).strip(chr(39))}`" if annotation else ""


def comment(line, tree):
    "The comment of a line and of the lines below that have nothing else, as Markdown."
    found = re.match(r".*?\s# (.*(?:\n +# .*)*)", "\n".join(tree.lines[line - 1:line + 3]))
    return plain(re.sub(r"\n +# ", " ", found[1]).strip()) if found else ""


def parameters(node, tree):
    "The parameters of a function that have a type or a comment, and what it returns: a row for each."
    rows, spec = [], node.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = dict(zip(map(id, reversed(positional)), reversed(spec.defaults)))
    defaults |= {id(a): d for a, d in zip(spec.kwonlyargs, spec.kw_defaults) if d is not None}
    stars = filter(None, (spec.vararg, spec.kwarg))
    for arg in sorted([*positional, *spec.kwonlyargs, *stars], key=lambda a: a.lineno):
        said = arg.lineno > node.lineno and comment(arg.lineno, tree)
        default = f"`{ast.unparse(defaults[id(arg)])}`" if id(arg) in defaults else ""
        if said or arg.annotation: rows.append([f"`{arg.arg}`", typed(arg.annotation), default, said or ""])
    if node.returns: rows.append(["returns", typed(node.returns), "", comment(node.returns.end_lineno, tree)])
    if rows and not any(row[3] for row in rows): return f"\nReturns {typed(node.returns)}.\n" if node.returns else "\n"
    return table_of(["parameter", "type", "default", "meaning"], rows)


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


def listed(registry):
    "The names of a registry, each with what its entry says of itself."
    rows = []
    for n, v in ((n, registry[n]) for n in registry.names()):
        doc = inspect.unwrap(v).__doc__ if inspect.isroutine(v) or inspect.isclass(v) else ""
        said = [getattr(v, "words", ""), getattr(v, "paper", ""), doc, getattr(v, "source", ""), ""]
        rows.append([f"`{n}`", plain(next(filter(None, said), "").split("\n\n")[0])])
    return table_of([registry.kind, ""], rows)


def entry(name, module, shown):
    "A function, class, sum of methods or registry: parameters, attributes, options, members and an example."
    tree, value = parsed()[module], value_of(name, module)
    node, text = documented(module)[name], plain(doc_of(module, name))
    if isinstance(node, ast.FunctionDef):
        return described("function", signature(node, tree), f"{text}\n{parameters(node, tree)}\n{shown}", module, 6)
    if node is None and not inspect.isclass(value):
        return described("data", name, f"{text}\n{listed(value)}", module, 6)
    if node is None:
        text = f"`\"{value.name}\"`: {text} The sum `{'+'.join(value.parts)}`, with the options of its parts:"
        return described("class", name, f"{text}\n{options(value)}", module, 7)
    key, init, inside, found = method_key(node), init_of(node), [], lineage(value)
    for of, n, t in found if not key else ():
        members = {m.name: m for m in reversed(n.body) if isinstance(m, ast.FunctionDef) and ast.get_docstring(m)
                   and not m.name.startswith("_")}                    # of a property, not its setter
        if FIRST.setdefault(of, name) == name != "Method":
            inside += [member(m, name, module, t) for m in reversed(members.values())]
        elif name == "Method": inside.append(hooks(n))
        elif members: inside.append(f"As of `{FIRST[of]}`: {', '.join(f'`{m}`' for m in reversed(members))}.\n")
    above = [c.__name__ for c in value.__mro__[1:] if c.__name__ in documented(c.__module__)]
    text = f"`\"{key}\"`: {text}\n" if key else f"{text}\n"
    if above and not key: text += f"\nIt has all that `{above[0]}` has.\n"
    own = [f for f in found if not key and FIRST[f[0]] == name]
    rows = [text, parameters(init, tree) if init else "", options(value), attributes(own)]
    return described("class", name if key else signature(node, tree), "\n".join([*rows, *inside, shown]), module, 7)


def page_in(module):
    "The notebook that a module comes from, or None."
    tree = parsed()[module]
    m = re.search(r"File to edit: (\S+\.ipynb)", "\n".join(tree.lines))
    return (tree.path.parent/m[1]).resolve() if m and (tree.path.parent/m[1]).exists() else None


@cache
def documented(module):
    "{name: its syntax tree, or None} of a module: chosen names, then classes, typed functions, sums and registries."
    tree = parsed().get(module)
    if tree is None or module == "fdgnb": return {}
    nodes = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    first = [n for task in TASKS for names in chosen(task).values() for m, n in names if m == module]
    def is_told(name):
        node = nodes.get(name)
        if node is None: return hasattr(value_of(name, module), "parts")
        return ast.get_docstring(node) and (isinstance(node, ast.ClassDef) or parameters(node, tree))
    return {n: nodes.get(n) for n in dict.fromkeys([*first, *filter(is_told, public(tree))])}


def doc_of(module, name):
    "The docstring of a name, of a registry a sentence."
    node, value = documented(module)[name], value_of(name, module)
    if node: return ast.get_docstring(node) or ""
    if inspect.isclass(value): return value.__doc__
    return f"Every {value.kind} by its name."


@cache
def read(page): return json.loads(page.read_text())


@cache
def examples(page):
    "The code cells of a page that show how something is used: not exported, not hidden, and short."
    cells = [c for c in read(page)["cells"] if c["cell_type"] == "code"]
    shown = [source for named, source in (directives(text_of(c)) for c in cells)
             if not {"export", "exporti", "exports", "hide"} & named.keys()]
    return [source for source in shown if source.count("\n") < 16]


def example(name, module):
    "A cell that calls a name, or fits a method by its key, and is no test; '' where there is none, or a docstring's."
    node, page = documented(module)[name], page_in(module)
    if node is None or ">>> " in doc_of(module, name): return ""
    key = method_key(node) if isinstance(node, ast.ClassDef) else None
    calls = rf"(?<![\w.]){name}\(|\bfdgnb\.{name}\("
    wanted = re.compile(rf'{calls}|fit\("{key}"' if key else calls)
    pages = list(filter(None, (page, *(NBS/f"{stem}.ipynb" for stem in ("own_data", "add", "index")))))
    if f"{module}.{name}" in face(): pages = [*pages[1:], *pages[:1]]                 # its example is one of use
    found = [(source, where) for where in pages for source in examples(where)
             if wanted.search(source) and not TESTING.search(source)]
    if not found: return ""
    source, where = found[0]
    return f"Example, from [{title_of(read(where))[0]}](../{place(where)}):\n\n`````python\n{source}\n`````\n"


def section(title, names, marked, level=2):
    "A section of the reference: names as (module, name). Each module is marked once, for links to it."
    lines = [f"{'#'*level} {title}", ""]
    homes = dict.fromkeys(m for m, _ in names)
    lines += [f"```{{py:module}} {m}\n```\n" for m in homes if m not in marked]
    marked.update(homes)
    found = dict.fromkeys(filter(None, map(page_in, homes)))
    links = ", ".join(f"[{title_of(read(page))[0]}](../{place(page)})" for page in found)
    if links: lines += [f"Notebook{'s'*(len(found) > 1)}: {links}", ""]
    return "\n".join([*lines, *(entry(n, m, example(n, m)) for m, n in names)])


def further(module, names, marked):
    "The section of a module for developers: what no section by task has."
    page, rest = page_in(module), [f"`{n}`" for n in public(parsed()[module]) if n not in documented(module)]
    title = title_of(read(page))[0] if page else module
    text = section(title, [(module, n) for n in names], marked, 3) if names else ""
    return text + f"Also in `{module}`: {', '.join(rest)}.\n"*bool(rest)


@cache
def face():
    "{dotted name: name} of what `import fdgnb` offers."
    return {f"fdgnb.{module}.{name}": f"fdgnb.{name}" for name, module in value_of("_where", "fdgnb").items()}


def summary(module, name):
    "The first sentence of a name's docstring."
    first = doc_of(module, name).split("\n\n")[0].replace("\n", " ")
    return plain(re.split(r"(?<=\w[.:;]) ", first)[0]).rstrip(":;")


def rest_of(task):
    "{module: its names that stand in no section by task}; a module that no task names is a part of training."
    taken = [pair for names in chosen(task).values() for pair in names]
    def place_of(module):
        found = [(len(w), t, i) for t, (_, _, words, _) in TASKS.items() for i, w in enumerate(words.split())
                 if f"{module}.".startswith(f"fdgnb.{w}.")]
        return max(found, default=(0, "train", 99))[1:]
    here = sorted((place_of(m), m) for m in modules())
    return {m: [n for n in documented(m) if (m, n) not in taken] for (of, _), m in here if of == task}


def index_page():
    "The front page of the reference: the tasks, each with the names that are used most."
    lines = ["---", "nosearch: true", "---", "", "# Reference", "> The names most used; each page has all of them.", ""]
    for task, (title, what, *_) in TASKS.items():
        every = [pair for names in chosen(task).values() for pair in names]
        n = len(every) + sum(map(len, rest_of(task).values()))
        lines += [f"## {title}", "", f"{what} [All {n} names]({task}.md)", ""]
        most = [(m, n) for m, n in every if f"{m}.{n}" in face()] or every
        shown = [(face().get(f"{m}.{n}", f"{m}.{n}"[6:]), m, n) for m, n in most]
        rows = [f"| {{py:obj}}`{at} <{m}.{n}>` | {summary(m, n)} |" for at, m, n in shown]
        lines += ["| name | |", "|---|---|", *rows, ""]
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *TASKS, "```", ""])


def task_page(task):
    "All public names of a task: those of users by what one does with them, the others by module."
    title, what, *_ = TASKS[task]
    marked, rest = set(), rest_of(task)
    parts = [section(what, names, marked) for what, names in chosen(task).items()]
    parts += [f"## {'Other methods, and what all are made of' if task == 'methods' else 'For developers'}\n"]
    parts += [further(m, names, marked) for m, names in rest.items()]
    return f"---\nnosearch: true\n---\n\n# {title}\n> {what}\n\n" + "\n".join(parts)


def pages():
    "{path below the site's sources: Markdown}."
    return {f"api/{task}.md": task_page(task) for task in TASKS} | {"api/index.md": index_page()}
