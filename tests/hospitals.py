"""A deployment in one process: a server and sites with folders of their own, over a grid in memory."""
import json
from PIL import Image
from fdgnb import get_dataset
from fdgnb.flower import deployment, site
from loopback import Grid

NAMES = "blended cluttered inked optical rendered".split()                    # the first is the target


def write_hospitals(folder, n=24, names=NAMES):
    "Images of digits as folders <site>/<class>/<image>; the folder of all of them."
    for name in names:
        domain = get_dataset("digits")[name]
        for i, (x, y) in enumerate(zip(domain.x[:n], domain.y[:n] % 3)):
            place = folder/"hospitals"/name/f"class {y}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x.permute(1, 2, 0).numpy()).save(place/f"{i:02}.png")
    return folder/"hospitals"


def nodes_of(hospitals, home, names=NAMES, target="blended"):
    "{number: (name, configuration)} of a SuperNode a site."
    return {i: (k, dict(name=k, folder=str(hospitals/k), home=str(home/k), role="target" if k == target else "client"))
            for i, k in enumerate(names, 1)}


def deploy(hospitals, home, plan, nodes=None, grid=None, before=None, after=None, **spec):
    "A run of a deployment over a grid in memory: (run, grid, what was said)."
    nodes = nodes or nodes_of(hospitals, home)
    grid, said = grid or Grid(site.app, nodes, dict(fdgnb=json.dumps(plan))), []
    grid.before, grid.after = before, after
    spec = dict(plan=plan, sites=[name for name, _ in nodes.values()], out=home/"server", wait=0, timeout=1) | spec
    try: return deployment.serve(grid, spec, said.append), grid, said
    finally: print(*said, sep="\n")
