"""Fail where a notebook is not clean or `fdgnb/` is not what the notebooks export: run the two tools on a copy and compare."""
import shutil, subprocess, sys, tempfile
from pathlib import Path

root = Path(__file__).resolve().parent.parent
with tempfile.TemporaryDirectory() as d:
    copy = Path(d)/"repo"
    top = lambda folder, names: {".venv", ".git", "data", "runs", "out", ".cache"} & set(names) if Path(folder) == root else set()
    shutil.copytree(root, copy, ignore=lambda folder, names: top(folder, names) | ({"__pycache__", ".ipynb_checkpoints"} & set(names)))
    for tool in ("nbdev_clean", "nbdev_export"):
        subprocess.run([str(Path(sys.executable).parent/tool)], cwd=copy, check=True)
    differ = [str(f.relative_to(copy)) for top in ("nbs", "fdgnb") for f in sorted((copy/top).rglob("*"))
              if f.suffix in (".ipynb", ".py") and (not (root/f.relative_to(copy)).exists() or f.read_bytes() != (root/f.relative_to(copy)).read_bytes())]
    stale = [str(f.relative_to(root)) for f in sorted((root/"fdgnb").rglob("*.py")) if not (copy/f.relative_to(root)).exists()]
if differ or stale:
    sys.exit("nbdev_clean and nbdev_export change: " + ", ".join(differ + stale) + "\nrun both, look at the diff, commit it")
print("notebooks are clean, fdgnb/ is what they export")
