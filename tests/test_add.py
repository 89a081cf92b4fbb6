"""The five methods of the page "Add a method": as short as a user would hope for."""
import ast, json
from pathlib import Path
import pytest

PAGE = Path(__file__).resolve().parent.parent/"nbs"/"add.ipynb"
MOST = dict(Scaffold=27, Moon=20, FedBN=9, FedSAM=12, FedAdam=15)


def lines_of(name):
    "Lines of code of a class on the page, its decorator counted, its docstring not."
    for cell in json.loads(PAGE.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or f"class {name}(" not in source: continue
        node = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name)
        lines = source.splitlines()[node.decorator_list[0].lineno - 1:node.end_lineno]
        return sum(bool(l.strip()) and not l.strip().startswith(("#", '"')) for l in lines)


@pytest.mark.parametrize("name", MOST)
def test_short(name):
    assert 0 < lines_of(name) <= MOST[name]
