"""The reference: docstrings and comments from the sources of fdgnb/, values from the package.

It has the names that a module lists as public, each once: what users need has a page a name, by task, and the rest a
page a module. A docstring is plain prose with names in backquotes, which become links; it is shown word by word.
"""
import ast, inspect, json, re, textwrap
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from importlib import import_module
from notebook_pages import ROOT, place, text_of, title_of

PACKAGE = ROOT/"fdgnb"
# {a page's name: (title, what one does with it, {section: "module names; module names"})}
TASKS = {
    "train": ("Train", "One run: arguments, options, rules, records, callbacks, pictures.", {
                  "Run and predict": "runs.fit fit Run; runs.records load; settings Settings",
                  "Read a run from its folder": "runs.selected Kept; runs.records Saved costs",
                  "Fine-tune for a new site": "runs.finetune finetune Tuned",
                  "Pictures and tables": "runs.metrics show traffic; runs.plots sample_sheet clients_plot "
                                         "overview_plot curves_plot confusion embedding ledger_plot domain_bars",
                  "Protocols": "runs.protocols PROTOCOLS",
                  "Networks": "models MODELS get add_backbone",
                  "Score and select rounds": "runs.metrics METRICS RULES rules_table",
                  "Watch a run": "runs.callbacks Callback Metrics Patience TensorBoard WandB MLflow",
                  "Errors": "core FdgnbError"}),
    "data": ("Data", "Data sets by name and of your own, partitions, random changes of images.", {
        "Load your own data": "data.folders from_folder; data.own from_arrays from_torch from_texts from_table; "
                              "data.features encode_images",
        "Load a data set by name": "data.catalogue get_dataset list_datasets",
        "Look into a data set": "data.domain Dataset Domain",
        "Change training images": "data.augment AUGMENTATIONS",
        "Make clients of domains": "data.partitions PARTITIONS"}),
    "methods": ("Methods", "What a method is made of, what methods share (kit), and all options.", {
        "Write a method": "federation.loop Method Client Server; settings hp; federation.compose method helper "
                          "list_methods; runs.imports import_modules",
        "Kit": "models outputs_of change_outputs; vectors tagged part weighted_mean; methods.testtime reestimate; "
               "methods.personal group_by_layer; methods.style channel_style with_style",
        "The five systems": "methods.fedsb FedSB; methods.ga GA; methods.fedka FedKA; methods.fedbr FedBR; "
                            "methods.fdse FDSE"}),
    "compare": ("Compare", "Grids of runs, stores, tables and statistics.", {
        "Plan and run a grid": "experiments.grid grid; experiments.execution run; experiments.search search",
        "Compare methods": "experiments.table table Table; experiments.statistics verdicts gain_of mean_ranks",
        "Keep records": "experiments.store Store results"}),
    "deploy": ("Deploy", "The same run on other machines, over Flower.", {
        "Set up and run a federation": "flower.commands make_federation make_key start_server start_site "
                                       "run_federated"})}
GUIDES = {"Write a method": "[Your own method](../add.ipynb), a round in code: [The loop](../federation/01_loop.ipynb)",
          "Run and predict": "[One run](../run.ipynb), [Your own data](../own_data.ipynb)"}
# what a docstring means as code or as mathematics, and what Markdown would read into the rest of it
MEANT = re.compile(r"(``[^`]+``|`[^`\n]+`|\$[^\s$][^$\n]*\$)")
FIRST = {}                                             # {class: the class whose entry shows its members}
SPECIAL = re.compile(r"([\\*_<>\[\]$#|~{}^])")
WORDS = set("run table get results method load search grid show part costs confusion embedding".split())  # seldom names
# a piece of code that is a name or its call; of a page what holds none to be linked: blocks, headings, links
NAMED = re.compile(r"(?<![`}])`(?:fdgnb\.(?:\w+\.)*)?(\w+)(?:\([^`<>]*\))?`(?!`)")
NO_PROSE = re.compile(r"(```.*?```|~~~.*?~~~|^#[^\n]*|^ {4}[^\n]*|\[[^\]\n]*\]\([^)\n]*\))", re.S | re.M)


def value_of(name, module): return getattr(import_module(module), name, None)
def link(module, name, text=""): return f"{{py:obj}}`{text or name} <{module}.{name}>`"
def mark_of(module): return f"```{{py:module}} {module}\n```\n"
def modules(): return {m for m in parsed() if documented(m)}
def rest_of(module): return [n for n in documented(module) if (module, n) not in users().values()]
def said_by(module): return f"[{title_of(json.loads(page_in(module).read_text()))[0]}](../{place(page_in(module))})"
def hidden(names): return "\n".join(["```{toctree}", ":hidden:", "", *dict.fromkeys(names), "```", ""])
def page(title, *lines): return "\n".join(["---", "nosearch: true", "---", "", f"# {title}", *lines])
def example(code): return f"\n~~~pycon\n>>> import fdgnb\n{textwrap.dedent(code)}\n~~~\n"
def init_of(node): return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
def stem(module, name=""): return f"{module}.{name}".removeprefix("fdgnb.").rstrip(".").lower()     # its page


@cache
def parsed():
    "{dotted name: syntax tree, with that name, its path and lines} of every module."
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        tree.module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree.path, tree.lines, trees[tree.module] = path, path.read_text().splitlines(), tree
    return trees


def lineage(cls):
    "[(class, the one whose entry shows its members, its syntax tree, its module's)] of a class and of those above it."
    ours = {c: parsed()[c.__module__] for c in cls.__mro__ if c.__module__ in parsed()}
    shows = {c: c if c.__name__ in documented(c.__module__) else FIRST.setdefault(c, cls) for c in ours}
    return [(c, shows[c], n, t) for c, t in ours.items()
            for n in t.body if isinstance(n, ast.ClassDef) and n.name == c.__name__]


@cache
def chosen(task):
    "{section: its names, as (module, name)} of a task."
    split = lambda words: [(f"fdgnb.{m}", n) for m, *names in map(str.split, words.split("; ")) for n in names]
    return {title: split(words) for title, words in TASKS[task][2].items()}


@cache
def users():
    "{name: (module, name)} of all names that users need."
    return {n: (m, n) for task in TASKS for names in chosen(task).values() for m, n in names}


def coded(text):
    "A piece in backquotes, which leads to the name that it is."
    name = re.sub(r"^fdgnb\.|\(\)$", "", text.strip("`"))
    return link(*users()[name], text.strip("`")) if name in users() and name not in WORDS else text


def refer(cells):
    "Link the first mention of each name of users in a page's prose to the reference."
    seen = set()
    def change(m):
        if m[1] not in users() or m[1] in seen or m[1] in WORDS and "fdgnb." not in m[0]: return m[0]
        seen.add(m[1])
        return link(*users()[m[1]], m[0].strip("`"))
    for cell in (c for c in cells if c["cell_type"] == "markdown"):
        parts = NO_PROSE.split(text_of(cell))
        parts[::2] = [NAMED.sub(change, p) for p in parts[::2]]
        cell["source"] = "".join(parts)


def public(tree):
    "The names that a module lists as its own, and the classes that are methods, by their key."
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"]
    methods = [n.name for n in tree.body if isinstance(n, ast.ClassDef) and method_key(n)]
    return list(dict.fromkeys([*(n for v in lists if isinstance(v, ast.List) for n in ast.literal_eval(v)), *methods]))


def plain(text):
    "A docstring as Markdown that shows it word by word; `code` and `$mathematics$` are set, and what follows >>>."
    text, *shown = re.split(r"\n\s*(?=>>> )", text, maxsplit=1)
    parts = MEANT.split(text)
    escaped = [coded(p) if i % 2 else SPECIAL.sub(r"\\\1", p) for i, p in enumerate(parts)]
    lines = "\n".join(l.strip() for l in "".join(escaped).split("\n"))
    text = re.sub(r"^(\d+)([.)])", r"\1\\\2", lines, flags=re.M)
    return "\n".join([text, *map(example, shown)])


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


def described(kind, signed, body, module, fence, option=""):
    "One entry of the Python domain."
    return f"{'`'*fence}{{py:{kind}}} {signed}\n:module: {module}\n{option}\n{body}\n{'`'*fence}\n"


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
        kind = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", repr(f.type))
        rows.append([f"`{f.name}`", typed(kind), "" if default is MISSING else f"`{default!r}`", text])
    return table_of(["option", "type", "default", "meaning"], rows)


def attributes(found):
    "What the bodies of classes declare and comment, but options: fields, class attributes, properties of one line."
    rows = {}
    for n, cls, tree in ((n, cls, tree) for cls, _, node, tree in found for n in node.body):
        if not isinstance(n, (ast.Assign, ast.AnnAssign)): continue
        name = ast.unparse(n.target if isinstance(n, ast.AnnAssign) else n.targets[0])
        call = n.value if isinstance(n.value, ast.Call) else None
        kind, said = ast.unparse(call.func) if call else "", comment(n.lineno, tree)
        if "property" in kind: said = next((plain(k.value.value) for k in call.keywords if k.arg == "doc"), said)
        if not said or name[0] in "_(" or kind in ("hp", "switch", "variant"): continue
        default = f"`{ast.unparse(n.value)}`" if n.value and not call and ast.unparse(n.value) != name else ""
        kind = typed(getattr(n, "annotation", None)) or f"`{type(vars(cls).get(name)).__name__}`"*bool(default)
        rows.setdefault(name, [f"`{name}`", kind, default, said])
    return table_of(["attribute", "type", "default", "meaning"], list(rows.values()))


def hooks(node, tree):
    "A table of the hooks of `Method`, each with its return's comment and, at the end of its docstring, who calls it."
    from fdgnb.federation.compose import METHODS, own_classes
    every, rows = [c for c in map(METHODS.get, METHODS.names()) if not hasattr(c, "parts")], []
    every.sort(key=lambda c: len(inspect.getsource(c)))
    for n in (n for n in node.body if isinstance(n, ast.FunctionDef) and ast.get_docstring(n)):
        does, _, called = ast.get_docstring(n).partition(" Called ")
        by = [link(c.__module__, c.__name__) for c in every if any(n.name in vars(k) for k in own_classes(c))]
        by[3:] = [f"{len(by) - 3} more"]*(len(by) > 3)
        gets = ", ".join(f"`{a.arg}`" for a in n.args.args[1:])
        row = [link(tree.module, f"Method.{n.name}", n.name), plain(does), gets, comment(n.lineno, tree) or "nothing"]
        rows.append([*row, plain(called).rstrip("."), ", ".join(by) or "none here"])
    return table_of(["hook", "what it does", "gets", "returns", "called", "overridden by"], rows)


def typed(annotation):
    "An annotation as Markdown: each alternative by itself, which leads to the class that it is."
    text = annotation if isinstance(annotation, str) else ast.unparse(annotation) if annotation else ""
    return " or ".join(coded(f"`{w}`") for w in text.strip("'").split(" | ") if w)


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
    every = filter(None, [*positional, *spec.kwonlyargs, spec.vararg, spec.kwarg])
    for arg in sorted(every, key=lambda a: a.lineno):
        said = arg.lineno > node.lineno and comment(arg.lineno, tree)
        default = f"`{ast.unparse(defaults[id(arg)])}`" if id(arg) in defaults else ""
        kind = typed(arg.annotation)
        if default == "`None`" and kind and "None" not in kind and "object" not in kind: kind += " or `None`"
        if said or arg.annotation: rows.append([f"`{arg.arg}`", kind, default, said or ""])
    if node.returns: rows.append(["returns", typed(node.returns), "", comment(node.returns.end_lineno, tree)])
    return table_of(["parameter", "type", "default", "meaning"], rows)


def member(node, owner, module, tree):
    "A method or property of a class; of a hook what FedAvg does."
    marks = [ast.unparse(d) for d in node.decorator_list]
    name, text, rows = f"{owner}.{node.name}", plain(ast.get_docstring(node)), parameters(node, tree)
    kind = f":type: {ast.unparse(node.returns)}\n" if node.returns else ""
    if any("property" in m for m in marks): return described("property", name, text, module, 3, kind)
    args = arguments(node.args)
    if "staticmethod" not in marks: args = re.sub(r"^\w+(, )?", "", args)
    if owner == "Method":
        body = textwrap.dedent("\n".join(tree.lines[node.body[0].end_lineno:node.end_lineno])) or "pass"
        rows = f"\n~~~python\n# by default, as in FedAvg\n{body}\n~~~\n"
    return described("method", f"{name}({args})", f"{text}\n{rows}", module, 4)


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


def entry(name, module):
    "A function, class, sum of methods or registry: parameters, attributes, options, members and an example."
    tree, value = parsed()[module], value_of(name, module)
    node, text = documented(module)[name], plain(doc_of(module, name))
    if f"{module}.{name}" not in face(): text = text.replace("fdgnb\n", f"fdgnb\n>>> from {module} import {name}\n", 1)
    if isinstance(node, ast.FunctionDef):
        return described("function", signature(node, tree), f"{text}\n{parameters(node, tree)}", module, 6)
    if node is None and not inspect.isclass(value):
        shown = example(f">>> from {module} import {name}\n>>> {name}.names()\n{value.names()!r}")
        return described("data", name, f"{text}\n{listed(value)}\n{shown}", module, 6)
    key = value.name if node is None else method_key(node)
    if node is None: text += f" The sum `{'+'.join(value.parts)}`, with the options of its parts:"
    if key:
        shown = example(f'>>> run = fdgnb.fit("{key}", "digits", rounds=1, limit=100)')
        return described("class", name, f"`\"{key}\"`: {text}\n{options(value)}\n{shown}", module, 7)
    init, found = init_of(node), lineage(value)
    own, inside, above = [f for f in found if f[1] is value], [], {}
    for of, shows, n, t in found:
        members = {m.name: m for m in reversed(n.body) if isinstance(m, ast.FunctionDef) and ast.get_docstring(m)
                   and not m.name.startswith("_")}                    # of a property, not its setter
        for m in reversed(members.values()):
            at = [link(shows.__module__, *to) for to in ((f"{shows.__name__}.{m.name}", m.name), (shows.__name__,))]
            if shows is value: inside.append(member(m, name, module, t))
            else: above.setdefault(m.name, [at[0], said_first(ast.get_docstring(m)), at[1]])
    rows = [text, parameters(init, tree) if init else "", options(value)]
    rows += [hooks(node, tree) if name == "Method" else "", attributes(own)]
    inherited = table_of(["inherited", "what it does", "from"], list(above.values()))
    return described("class", signature(node, tree), "\n".join([*rows, *inside, inherited]), module, 7)


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
    return value.__doc__ if inspect.isclass(value) else f"Every {value.kind} by its name."


@cache
def face():
    "{dotted name: name} of what `import fdgnb` offers."
    return {f"fdgnb.{module}.{name}": f"fdgnb.{name}" for name, module in value_of("_where", "fdgnb").items()}


def said_first(doc):                                                                # its first sentence
    return plain(re.split(r"\n\n|\n>>>|(?<=\w[.;])\s", doc)[0].replace("\n", " ")).rstrip(":;")


def names_table(names):
    "A table of names, (module, name), each with the first sentence of its docstring."
    rows = [[link(m, n, face().get(f"{m}.{n}", f"{m}.{n}"[6:])), said_first(doc_of(m, n))] for m, n in names]
    return table_of(["name", "what it is"], rows)


def index_page():
    "The front page of the reference: the tasks, each with the names that are used most."
    lines = ["> The names most used, by task. Each has a page; the examples there run as they stand.", ""]
    for task, (title, what, *_) in TASKS.items():
        every = [pair for names in chosen(task).values() for pair in names]
        lines += [f"## {title}", "", f"{what} [All of this task]({task}.md)", ""]
        lines += [names_table([(m, n) for m, n in every if f"{m}.{n}" in face()] or every)]
    return page("Reference", *lines, hidden(TASKS))


def task_page(task):
    "The names of a task, by what one does with them."
    title, what, sections = TASKS[task]
    parts = [f"## {section}\n{names_table(chosen(task)[section])}" for section in sections]
    names = {stem(m, n): f"{n} <{stem(m, n)}>" for section in sections for m, n in chosen(task)[section]}
    return page(title, f"> {what}", "", *parts, "The rest stands [by module](modules.md).\n", hidden(names.values()))


def name_page(task, section, module, name):
    "A name of users: how it is imported, what it is, and what stands beside it."
    full = face().get(f"{module}.{name}")
    how = "import fdgnb" if full else f"from {module} import {name}"
    also = names_table([pair for pair in chosen(task)[section] if pair != (module, name)])
    mark = mark_of(module)*(not rest_of(module) and next(iter(documented(module))) == name)     # of no module_page
    guide = f" · How to: {GUIDES[section]}" if section in GUIDES else ""
    return page(full or f"{module}.{name}", f"`{how}` · [{TASKS[task][0]}]({task}.md): {section}{guide}", "",
                mark, entry(name, module), "## See also", also, f"The notebook: {said_by(module)}.\n")


def module_page(module):
    "What a module has beside the names of users."
    lines = [f"For developers; from the notebook {said_by(module)}.", "", mark_of(module)]
    lines += [names_table([pair for pair in users().values() if pair[0] == module])]
    return page(f"`{module}`", *lines, *(entry(n, module) for n in rest_of(module)))


def modules_page():
    "All modules that have a page, each with what no task has."
    there = [m for m in sorted(modules()) if rest_of(m)]
    rows = [[f"[`{m[6:]}`]({stem(m)}.md)", ", ".join(link(m, n) for n in rest_of(m))] for m in there]
    return page("By module", "> All methods, and what the modules offer to developers.", "",
                table_of(["module", "names"], rows), hidden(f"{m[6:]} <{stem(m)}>" for m in there))


def pages():
    "{path below the site's sources: Markdown}."
    out = {"index": index_page(), "modules": modules_page()} | {task: task_page(task) for task in TASKS}
    for task, section, (m, n) in ((t, s, pair) for t in TASKS for s in TASKS[t][2] for pair in chosen(t)[s]):
        at, text = stem(m, n), name_page(task, section, m, n)
        out[at] = f"{out[at]}\n{entry(n, m)}" if at in out else text
    out |= {stem(m): module_page(m) for m in modules() if rest_of(m)}
    return {f"api/{name}.md": text for name, text in out.items()}
