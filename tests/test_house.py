"""The house's own rules: imports run one way, cells are short, lines fit, pages are linked, one spelling.

Every rule is a function over sources, so that a planted breach of each kind shows that it would be found.
"""
import ast, io, json, re, tokenize
from pathlib import Path
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(p for p in (ROOT/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
SCRIPTS = sorted(p for folder in ("tests", "bench", "docs") for p in (ROOT/folder).glob("*.py"))
name_of = lambda p: str(p.relative_to(ROOT))
each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


# ---- what a module imports

def package():
    "{dotted name: source} of every module of fdgnb; a folder's `__init__` goes by the folder's name."
    dotted = lambda p: ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return {dotted(p): p.read_text() for p in sorted((ROOT/"fdgnb").rglob("*.py")) if p.name != "_modidx.py"}


def faces(sources):
    "The modules that are folders: those with modules below them, and the known folders even where empty."
    return {m for m in sources if any(n.startswith(m + ".") for n in sources)} | {"fdgnb", *FOLDERS}


def absolute(module, target, level, folders):
    "The dotted name that a relative import (of `level` dots) in `module` means."
    if not level: return target or ""
    parts = (module if module in folders else module.rpartition(".")[0]).split(".")
    return ".".join([*parts[:len(parts) - level + 1], *([target] if target else [])])


def head_of(node, module, folders):
    "(text, whole) of a string expression: its constant beginning, and whether that is all; None: unreadable."
    if isinstance(node, ast.Constant) and isinstance(node.value, str): return node.value, True
    if isinstance(node, ast.Name) and node.id == "__name__": return module, True
    if isinstance(node, ast.Name) and node.id == "__package__":
        return (module if module in folders else module.rpartition(".")[0]), True
    if isinstance(node, ast.FormattedValue): return head_of(node.value, module, folders)
    pieces = node.values if isinstance(node, ast.JoinedStr) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add): pieces = [node.left, node.right]
    if pieces is None: return None
    text = ""
    for p in pieces:
        known = head_of(p, module, folders)
        if known is None: return (text, False) if text else None
        text += known[0]
        if not known[1]: return text, False
    return text, True


class Imports(ast.NodeVisitor):
    """The imports of one module: `edges` {(imported module, line, whether inside a function)}, and `unread`,
    the lines of imports whose name cannot be read. A module's `__getattr__` imports what its strings name."""
    def __init__(self, module, source, modules):
        self.module, self.modules, self.folders = module, set(modules), faces(modules)
        self.edges, self.unread, self.where, self.heads, self.lazy = set(), [], [], {"fdgnb.", ""}, False
        self.importers = {"import_module", "__import__"}
        self.tree = ast.parse(source)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module == "importlib":
                self.importers |= {a.asname for a in node.names if a.name in self.importers and a.asname}
        self.visit(self.tree)
        if self.lazy: self.read_table()

    def add(self, name, line):
        "An own module, or the nearest package above it that exists; others are no concern of ours."
        while name and name not in self.modules: name = name.rpartition(".")[0]
        if name: self.edges.add((name, line, any(kind == "function" for kind in self.where)))

    def visit_Import(self, node):
        for a in node.names: self.add(a.name, node.lineno)

    def visit_ImportFrom(self, node):
        base = absolute(self.module, node.module, node.level, self.folders)
        for a in node.names:
            whole = f"{base}.{a.name}"
            self.add(whole if whole in self.modules else base, node.lineno)

    def visit_FunctionDef(self, node):
        lazy = node.name == "__getattr__" and not self.where
        self.lazy |= lazy
        for d in [*node.decorator_list, node.args]: self.visit(d)
        self.where.append("face" if lazy else "function")
        for s in node.body: self.visit(s)
        self.where.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node):
        self.where.append("function"); self.generic_visit(node); self.where.pop()

    def visit_ClassDef(self, node):
        self.where.append(f"class {node.name}"); self.generic_visit(node); self.where.pop()

    def visit_Call(self, node):
        f = node.func
        called = f.id if isinstance(f, ast.Name) else f.attr if isinstance(f, ast.Attribute) else ""
        given = [*node.args, *(k.value for k in node.keywords)]
        if called in self.importers and given: self.dynamic(node, given)
        if called == "Registry" and len(given) > 1: self.registry(node, given)
        self.generic_visit(node)

    def dynamic(self, node, given):
        "`import_module(name, package)` and its kin."
        if (self.module, *self.where[:1]) in NAMED: return
        head = head_of(given[0], self.module, self.folders)
        if head is None:
            if not any(kind == "face" for kind in self.where): self.unread.append(node.lineno)
            return
        text, whole = head
        dots = len(text) - len(text.lstrip("."))
        if dots: text = absolute(self.module, text[dots:], dots, self.folders)
        if whole: self.add(text, node.lineno)
        elif text.startswith("fdgnb"):
            if any(kind == "face" for kind in self.where): self.heads.add(text.rstrip(".") + ".")
            else:
                for m in sorted(self.modules):
                    if m.startswith(text): self.add(m, node.lineno)

    def registry(self, node, given):
        "`Registry(kind, package)` imports that package's modules at first use: two may, and are named."
        head = head_of(given[1], self.module, self.folders)
        if head is None: self.unread.append(node.lineno)
        elif (self.module, head[0]) not in REGISTRIES: self.add(head[0], node.lineno)

    def read_table(self):
        "Every string of a lazy face that names one of our modules, alone or behind a head of `__getattr__`."
        own = self.module if self.module in self.folders else self.module.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
                text = node.value.lstrip(".")
                for head in (*self.heads, own + "."):
                    if head + text in self.modules: self.edges.add((head + text, node.lineno, False))


# ---- floors

FOLDERS = {"fdgnb.data": 3, "fdgnb.federation": 4, "fdgnb.runs": 5, "fdgnb.methods": 5,
           "fdgnb.experiments": 6, "fdgnb.tables": 7}
ROOMS = {"fdgnb.core": 1, "fdgnb.vectors": 2, "fdgnb.settings": 2, "fdgnb.models": 2}
# these import what they are given: the registries, the user's own modules, and what these import in turn
NAMED = {("fdgnb.core", "class Registry"), ("fdgnb.runs.imports", "function"),
         ("fdgnb.runs.versions", "function")}
REGISTRIES = {("fdgnb.federation.compose", "fdgnb.methods"), ("fdgnb.data.catalogue", "fdgnb.data")}
LOOP = "fdgnb.federation.loop"
LOOP_NEEDS = ("fdgnb.core", "fdgnb.vectors", "fdgnb.settings", "fdgnb.models", "fdgnb.data.",
              "fdgnb.federation.steps")


def floor(module):
    "The floor of a module; a folder's face and command line are half a floor above its rooms; None: on none."
    if module == "fdgnb": return 9
    if module in ROOMS: return ROOMS[module]
    folder = ".".join(module.split(".")[:2])
    if folder not in FOLDERS: return None
    return FOLDERS[folder] + .5*(module == folder or module.endswith(".__main__"))


def runs_up(a, b):
    "Whether `a` may not import `b`, for it is on a higher floor, or in another room of the same one."
    folder = lambda m: m.split(".")[1]
    if {folder(a + "."), folder(b + ".")} == {"runs", "methods"}: return True
    same_room = floor(a) == 2 or folder(a + ".") == folder(b + ".")
    return floor(b) > floor(a) or (floor(a) == floor(b) and not same_room)


def circle(graph):
    "One circle of a graph {node: nodes}, as a list that ends where it begins; [] where there is none."
    done = set()

    def look(node, path):
        if node in path: return [*path[path.index(node):], node]
        if node in done: return []
        for n in sorted(graph.get(node, ())):
            if found := look(n, [*path, node]): return found
        done.add(node)
        return []
    return next((c for n in sorted(graph) if (c := look(n, []))), [])


def breaches(sources):
    "Every breach of the rules of imports in {module: source}, one line each."
    read = {m: Imports(m, s, sources) for m, s in sources.items()}
    out = [f"{m} stands on no floor" for m in sources if floor(m) is None]
    for m, imports in read.items():
        out += [f"{m}:{line} imports a module whose name cannot be read" for line in imports.unread]
        for target, line, hidden in sorted(imports.edges):
            if hidden: out.append(f"{m}:{line} imports {target} inside a function")
            if None not in (floor(m), floor(target)) and m != target and runs_up(m, target):
                out.append(f"{m}:{line} imports {target}: up a floor, or across")
            if m == LOOP and not target.startswith(LOOP_NEEDS):
                out.append(f"{m}:{line} imports {target}: not for the loop")
    around = circle({m: {t for t, *_ in i.edges} - {m} for m, i in read.items()})
    return out + ["circle: " + " > ".join(around)]*bool(around)


def test_imports_run_one_way():
    assert not breaches(package())


CLEAN = {
    "fdgnb": "", "fdgnb.core": "", "fdgnb.models": "", "fdgnb.data": "", "fdgnb.federation": "",
    "fdgnb.runs": "", "fdgnb.methods": "",
    "fdgnb.vectors": "from .core import a",
    "fdgnb.settings": "from .core import nearest",
    "fdgnb.data.domain": "from ..core import a",
    "fdgnb.data.found": "from .domain import b\nfrom . import domain",
    "fdgnb.federation.steps": "import torch",
    "fdgnb.federation.loop": "from .steps import c\nfrom ..data.domain import b",
    "fdgnb.federation.compose": "from ..core import Registry\nMETHODS = Registry('method', 'fdgnb.methods')",
    "fdgnb.runs.fit": "from ..federation import loop\ndef f():\n    import pandas",
    "fdgnb.runs.imports": "from importlib import import_module\ndef f(name): return import_module(name)",
    "fdgnb.methods.ga": "import fdgnb.models as models\nfrom ..federation.loop import Method"}
IN_FUNCTION = "def f():\n    from .core import a\n    return a"
LAZY = """from importlib import import_module
_where = dict(fit='runs.fit')
def __getattr__(name): return import_module(f'fdgnb.{_where[name]}')"""
PLANTED = {
    "a circle": (
        "fdgnb.data.domain", "from .found import x",
        "circle: fdgnb.data.domain > fdgnb.data.found > fdgnb.data.domain"),
    "a circle on floor 2": (
        "fdgnb.core", "from . import vectors", "circle: fdgnb.core > fdgnb.vectors > fdgnb.core"),
    "up a floor": (
        "fdgnb.data.domain", "from ..federation.steps import x",
        "data.domain:1 imports fdgnb.federation.steps: up"),
    "up to the top": ("fdgnb.models", "import fdgnb", "fdgnb.models:1 imports fdgnb: up"),
    "up to its own face": (
        "fdgnb.data.found", "from ..data import x", "fdgnb.data.found:1 imports fdgnb.data: up"),
    "under a plain name": (
        "fdgnb.data.domain", "import fdgnb.federation.steps",
        "data.domain:1 imports fdgnb.federation.steps: up"),
    "up at the end of a file": (
        "fdgnb.core", "a = 1\nif a:\n    from .models import x", "fdgnb.core:3 imports fdgnb.models: up"),
    "runs from methods": (
        "fdgnb.runs.fit", "from ..methods.ga import x", "fdgnb.runs.fit:1 imports fdgnb.methods.ga: up"),
    "methods from runs": (
        "fdgnb.methods.ga", "from fdgnb.runs import fit", "fdgnb.methods.ga:1 imports fdgnb.runs.fit: up"),
    "import_module": (
        "fdgnb.settings", "import importlib\nm = importlib.import_module('fdgnb.runs.fit')",
        "fdgnb.settings:2 imports fdgnb.runs.fit: up"),
    "import_module, relative": (
        "fdgnb.models", "from importlib import import_module\nimport_module('.data', __package__)",
        "fdgnb.models:2 imports fdgnb.data: up"),
    "import_module under another name": (
        "fdgnb.models", "from importlib import import_module as im\nim('fdgnb.runs')",
        "fdgnb.models:2 imports fdgnb.runs: up"),
    "import_module, the head alone": (
        "fdgnb.core", "from importlib import import_module as im\nim(f'fdgnb.runs.{1}')",
        "fdgnb.core:2 imports fdgnb.runs.fit: up"),
    "import_module, unreadable": (
        "fdgnb.core", "from importlib import import_module\nimport_module(name)",
        "fdgnb.core:2 imports a module whose name cannot be read"),
    "import_module, unreadable, in another room": (
        "fdgnb.runs.fit", "from importlib import import_module\ndef f(name): return import_module(name)",
        "fdgnb.runs.fit:2 imports a module whose name cannot be read"),
    "__import__": (
        "fdgnb.vectors", "__import__('fdgnb.data.found')", "fdgnb.vectors:1 imports fdgnb.data.found: up"),
    "inside a function": (
        "fdgnb.settings", IN_FUNCTION, "fdgnb.settings:2 imports fdgnb.core inside a function"),
    "inside a method": (
        "fdgnb.settings", "class A:\n    async def f(self): import fdgnb.core",
        "fdgnb.settings:2 imports fdgnb.core inside a function"),
    "import_module inside a function": (
        "fdgnb.runs.fit", "def f(): return __import__('fdgnb.core')",
        "fdgnb.runs.fit:1 imports fdgnb.core inside a function"),
    "a module's __getattr__": ("fdgnb.data", LAZY, "fdgnb.data:2 imports fdgnb.runs.fit: up"),
    "a __getattr__ that imports": (
        "fdgnb.vectors", "def __getattr__(name):\n    from .runs import fit\n    return fit",
        "fdgnb.vectors:2 imports fdgnb.runs.fit: up"),
    "a third registry": (
        "fdgnb.core", "PLANS = Registry('plan', 'fdgnb.runs')", "fdgnb.core:1 imports fdgnb.runs: up"),
    "a registry in another room": (
        "fdgnb.federation.steps", "A = Registry('method', package='fdgnb.methods')",
        "fdgnb.federation.steps:1 imports fdgnb.methods: up"),
    "the loop from its floor": (
        LOOP, "from .compose import x", "loop:1 imports fdgnb.federation.compose: not for"),
    "a module of no floor": ("fdgnb.attic", "", "fdgnb.attic stands on no floor")}


def test_clean_imports_are_not_accused():
    assert not breaches(CLEAN)
    assert not breaches(CLEAN | {"fdgnb": LAZY})                      # the top face may name everything


@pytest.mark.parametrize("what", PLANTED)
def test_planted_import_is_found(what):
    module, source, message = PLANTED[what]
    found = breaches(CLEAN | {module: source})
    assert any(message in b for b in found), found


# ---- sizes

def cells(page, kind="code"):
    "Sources of a page's cells of one kind."
    return ["".join(c["source"]) for c in json.loads(page.read_text())["cells"] if c["cell_type"] == kind]


def exported(page): return [c for c in cells(page) if re.search(r"^#\| ?exports?i?\b", c, re.M)]


def plain(source):
    "A cell as Python: lines of magics left out."
    return "\n".join("" if re.match(r"\s*[%!]", line) else line for line in source.split("\n"))


def span(node): return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def docstrings(tree):
    "The docstring nodes of a tree."
    for n in ast.walk(tree):
        documented = isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        first = n.body[0] if documented and n.body else None
        if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str): yield first


SILENT = {getattr(tokenize, k) for k in "NL NEWLINE INDENT DEDENT COMMENT ENDMARKER".split()}


def code_lines(source):
    "How many lines hold code: not blank, not a comment, not (only) an import or a docstring."
    tree, rows = ast.parse(plain(source)), set()
    imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    left_out = [span(n) for n in (*imports, *docstrings(tree))]
    inside = lambda t: any(a <= t.start and t.end <= b for a, b in left_out)
    for t in tokenize.generate_tokens(io.StringIO(plain(source)).readline):
        if t.type in SILENT or t.string == ";" or inside(t): continue
        rows |= set(range(t.start[0], t.end[0] + 1))
    return len(rows)


def methods_of(sources):
    "Names of the classes that derive from Method, in however many steps."
    known = {"Method"}
    classes = [n for s in sources for n in ast.walk(ast.parse(s)) if isinstance(n, ast.ClassDef)]
    base = lambda b: b.id if isinstance(b, ast.Name) else b.attr if isinstance(b, ast.Attribute) else ""
    while new := {c.name for c in classes if any(base(b) in known for b in c.bases)} - known: known |= new
    return known - {"Method"}


def is_table(source):
    "A single assignment of literals (DomainNet's class names, a protocol's rows): data, not code."
    body = [n for n in ast.parse(plain(source)).body if not isinstance(n, (ast.Import, ast.ImportFrom))]
    literal = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.USub, ast.Load,
               ast.keyword)
    dict_call = lambda n: isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "dict"
    word = lambda n: isinstance(n, ast.Name) and n.id == "dict"
    return len(body) == 1 and isinstance(body[0], ast.Assign) and all(
        isinstance(n, literal) or dict_call(n) or word(n) for n in ast.walk(body[0].value))


def too_long(page, methods):
    "[(lines of code, allowed, first line)] of the exported cells of a page that are over their limit."
    out = []
    for c in exported(page):
        classes = [n for n in ast.walk(ast.parse(plain(c))) if isinstance(n, ast.ClassDef)]
        named = lambda d: getattr(getattr(d, "func", d), "id", "")
        decorated = lambda n: "method" in map(named, n.decorator_list)
        allowed = 45 if any(n.name in methods or decorated(n) for n in classes) else 30
        if page.parent.name == "federation" and "loop" in page.stem: allowed = 50
        n = 0 if is_table(c) else code_lines(c)
        if n > allowed: out.append((n, allowed, next(l for l in c.split("\n") if l and l[0] not in "#@")))
    return out


@pytest.fixture(scope="module")
def methods(): return methods_of(package().values())


@each_page
def test_exported_cells_are_short(page, methods):
    "30 lines of code, a method's class 45, the loop page 50; tables of pure data are exempt."
    long = too_long(page, methods)
    assert not long, "(lines of code, allowed, where)"


def test_the_loop_fits_one_page():
    page, = (ROOT/"nbs/federation").glob("*loop*.ipynb")
    assert sum(code_lines(c) for c in exported(page)) <= 120


def test_code_lines_by_hand():
    source = """import os
# why

def f(a,
      b):
    'One line.'
    from x import (y,
                   z)
    return a  # it

class A: 'Doc.'
"""
    assert code_lines(source) == 4                                    # def f(a, / b): / return / class A
    assert code_lines("x = '''a\nb'''; import os\né = 'é'; import sys") == 3
    assert code_lines("import os; x = 1") == 1 and code_lines("%time x\nimport os") == 0
    assert is_table("A = {'a': (1, -2.), 'b': dict(c=[None])}")
    assert is_table("#| export\nimport os\nA = ('a', 'b')")
    assert not is_table("A = f(1)") and not is_table("A = 1\nB = 2") and not is_table("def f(): pass")
    assert methods_of(["class A(Method): pass\nclass B(A, x.C): pass\nclass C: pass"]) == {"A", "B"}


# ---- what a reader sees

COLUMNS = 110


def wide(source):
    "[(line, columns)] of the lines that do not fit."
    return [(i, len(line)) for i, line in enumerate(source.split("\n"), 1) if len(line) > COLUMNS]


@each_page
def test_code_of_a_page_fits(page):
    too_wide = [(cell, *w) for cell, c in enumerate(cells(page)) for w in wide(c)]
    assert not too_wide, "(cell, line, columns)"


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_code_of_a_script_fits(script):
    too_wide = wide(script.read_text())
    assert not too_wide, "(line, columns)"


def links(text):
    "Relative targets of the links of a Markdown text, code left out, anchors cut off."
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    found = [t.split("#")[0] for t in re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+[\"'][^\"']*[\"'])?\)", text)]
    return [t for t in found if t and not re.match(r"[a-z]+:", t)]


@each_page
def test_links_of_a_page(page):
    "A page leads to another one at least, and every relative link to a file that is there."
    targets = [t for c in cells(page, "markdown") for t in links(c)]
    assert not [t for t in targets if not (page.parent/t).exists()]
    others = [t for t in targets if t.endswith(".ipynb") and (page.parent/t).resolve() != page]
    assert others, "no link to another page"


@pytest.mark.parametrize("path", ["README.md", "reports/README.md"])
def test_links_of_the_readme(path):
    assert not [t for t in links((ROOT/path).read_text()) if not ((ROOT/path).parent/t).exists()]


MACHINE = re.compile(r"(?<![\w.<])/(?:work|tmp|root|home|mnt|Users)\b")


def texts(output):
    "What an output shows as text; pictures left out."
    shown = [v for k, v in output.get("data", {}).items() if not k.startswith("image/") or k.endswith("+xml")]
    joined = lambda v: "".join(map(str, v)) if isinstance(v, list) else v
    as_text = lambda v: json.dumps(v) if isinstance(v, dict) else str(joined(v))
    return "\n".join(map(as_text, [output.get("text", ""), *shown, output.get("traceback", "")]))


@each_page
def test_outputs_of_a_page(page):
    "No path of the machine it was run on, no error."
    outputs = [o for c in json.loads(page.read_text())["cells"] for o in c.get("outputs", [])]
    assert not [m[0] for o in outputs for m in [MACHINE.search(texts(o))] if m]
    assert not [o["ename"] for o in outputs if o["output_type"] == "error"]


# stems with British endings, and words; what stands in backquotes (hyper-parameters, settings) is not prose
STEMS = """optim normal general initial regular minim maxim summar random real recogn categor vector special
    standard emphas parameter util penal factor central local personal serial token quant synchron visual
    harmon weight organ character crystall equal final""".split()
WORDS = r"""analys(?:e|es|ed|ing) \w*(?:colou|behaviou|favou|neighbou|labou|honou|flavou)r\w* grey\w*
    centre[sd]? \w*labell(?:ed|ing) modell(?:ed|ing|er) travell(?:ed|ing) cancell(?:ed|ing) licence defence
    artefacts? whilst judgement""".split()
ENDINGS = "is(?:e|es|ed|ing|er|ers|ation|ations|able)"
BRITISH = re.compile(rf"\b(?:\w*(?:{'|'.join(STEMS)}){ENDINGS}|{'|'.join(WORDS)})\b", re.I)


def prose(page):
    "The prose cells of a page, code and addresses left out, and the docstrings of its code."
    not_prose = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|https?://\S+", re.S)
    for c in cells(page, "markdown"): yield not_prose.sub(" ", c)
    for c in cells(page):
        for d in docstrings(ast.parse(plain(c))): yield re.sub(r"`[^`\n]*`", " ", d.value.value)


@each_page
def test_american_spelling(page):
    british = sorted({m[0] for text in prose(page) for m in BRITISH.finditer(text)})
    assert not british


def test_readers_rules_by_hand():
    assert wide("a"*110) == [] and wide("a\n" + "b"*111) == [(2, 111)]
    linked = "[a](b.ipynb#c) `[x](y)` ![p](q.png) [u](https://v.w) [s](#here) [t](c.md 'title')"
    assert links(linked) == ["b.ipynb", "q.png", "c.md"]
    assert MACHINE.search("in /tmp/a")
    assert not MACHINE.search("a/tmp/b") and not MACHINE.search("reports/home")
    assert texts({"output_type": "stream", "text": ["a\n", "b"]}).strip() == "a\nb"


def test_british_spelling_is_found():
    found = lambda s: [m[0] for m in BRITISH.finditer(s)]
    british = "optimiser normalises unlabelled grey colours centred Generalisation artefact"
    assert found(british) == british.split()
    assert not found("a specialist's emphasis on optimism; an organism; gray colors; precise; realism")
