"""Fail where a notebook is not clean or `fdgnb/` is not what the notebooks export.

The two tools run on a copy, which is then compared with the checkout.
"""
import shutil, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = {".venv", ".git", "data", "runs", "out", "_docs", ".cache"}    # beside the sources, at the top only
DROPPINGS = {"__pycache__", ".ipynb_checkpoints"}


def left_out(folder, names): return set(names) & (DROPPINGS | OURS if Path(folder) == ROOT else DROPPINGS)


def sources(root):
    "{path below root: bytes} of all notebooks and modules."
    files = [f for top in ("nbs", "fdgnb") for f in (root/top).rglob("*")]
    ours = [f for f in files if f.suffix in (".ipynb", ".py") and not DROPPINGS & set(f.parts)]
    return {str(f.relative_to(root)): f.read_bytes() for f in ours}


with tempfile.TemporaryDirectory() as d:
    copy = Path(d)/"repo"
    shutil.copytree(ROOT, copy, ignore=left_out)
    for module in (copy/"fdgnb").rglob("*.py"): module.unlink()       # without a notebook it stays away
    for tool in ("nbdev_export", "nbdev_clean"):
        subprocess.run([str(Path(sys.executable).parent/tool)], cwd=copy, check=True)
    here, there = sources(ROOT), sources(copy)

if differ := sorted(k for k in here | there if here.get(k) != there.get(k)):
    sys.exit(f"nbdev_clean, nbdev_export change {', '.join(differ)}: run both, look at the diff, commit it")
print("notebooks are clean, fdgnb/ is what they export")
