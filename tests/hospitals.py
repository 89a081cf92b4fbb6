"""A deployment in one process: a grid in memory, behind it the functions of real sites, with folders of their own."""
import json
from types import SimpleNamespace
from PIL import Image
from fdgnb import get_dataset
from fdgnb.federation.node import ASKS
from fdgnb.flower.deployment import serve
from fdgnb.flower.engine import Loopback, message_type, travel
from fdgnb.flower.site import make_part, reply_to

ASKED = {message_type(what): what for what in ("hello", *ASKS)}
NAMES = "blended cluttered inked optical rendered".split()                    # the first is the target


def write_hospitals(folder, n=24, names=NAMES):
    "Images of digits as folders <site>/<class>/<image>; the folder of all of them."
    for domain in (get_dataset("digits")[name] for name in names):
        for i, (x, y) in enumerate(zip(domain.x[:n], domain.y[:n] % 3)):
            place = folder/"hospitals"/domain.name/f"class {y}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x.permute(1, 2, 0).numpy()).save(place/f"{i:02}.png")
    return folder/"hospitals"


class Grid(Loopback):
    "SuperNodes in memory: {number: (registered name, node configuration)}."
    def __init__(self, nodes, plan):
        super().__init__(None, nodes)
        self.configs, self.plan, self.down, self.asked = dict(nodes), plan, set(), []

    def get_nodes(self):
        return [SimpleNamespace(node_id=n, name=name) for n, (name, _) in self.configs.items() if n not in self.down]

    def push(self, message):
        self.number += 1
        number, meta = str(self.number), message.metadata
        meta.__dict__["_message_id"] = number
        what, node = ASKED[meta.message_type], meta.dst_node_id
        self.asked.append((what, node))
        if node in self.down or self.is_lost(what, node): return number
        message.content = travel(message.content)
        context = SimpleNamespace(node_config=self.configs[node][1], run_config=dict(fdgnb=self.plan))
        make_part.cache_clear()                                               # a process a message
        self.replies[number] = reply_to(what, message, context)
        return number

    def is_lost(self, what, node): return False


def nodes_of(hospitals, home, names=NAMES, target="blended"):
    "{number: (name, configuration)} of a SuperNode a site."
    return {i: (k, dict(name=k, folder=str(hospitals/k), home=str(home/k), role="target" if k == target else "client"))
            for i, k in enumerate(names, 1)}


def deploy(hospitals, home, plan, nodes=None, grid=None, **spec):
    "A run of a deployment over a grid in memory: (run, grid, what was said)."
    grid, said = grid or Grid(nodes or nodes_of(hospitals, home), json.dumps(plan)), []
    spec = dict(plan=plan, sites=NAMES, out=home/"server", wait=0, timeout=1) | spec
    try: return serve(grid, spec, said.append), grid, said
    finally: print(*said, sep="\n")
