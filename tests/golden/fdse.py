"""Golden numbers of FDSE: four rounds of three clients by both published versions, in float64.

    python tests/golden/fdse.py LATEST FIRST EASYFL

LATEST, FIRST: WwZzz/FDSE_CVPR25 at the two commits below; EASYFL: WwZzz/easyFL, whose `flgo.utils.fmodule`
both import. Server and clients are the authors' (`iterate`, `pack`, `unpack`, `train`); what FLGo does around
them (who is asked, which batch comes next, the optimizer) stands here, and the network is small and made of
their `DSEConv` and `DSELinear`. Needs cvxopt, whose quadratic programs are solved to 1e-13 here (its own 1e-7
would be the largest error), and `Tensor.float` keeps float64.
"""
import copy, importlib.util, json, sys, types
from collections import namedtuple
from pathlib import Path
import cvxopt
import torch
import torch.nn.functional as F
from torch import nn

FILE = Path(__file__).with_suffix(".json")
SOURCE = dict(repository="WwZzz/FDSE_CVPR25",
              commit=dict(latest="01f7bd7a17d7ee6a8e412f7ee326aec485b32d86",
                          first="dd266a2c09830845570a7898ae58c2e349a5e006"),
              beside="WwZzz/easyFL, commit ea07f1d082efacca2eff27ee401a7ab4ec604825",
              function="Server.iterate, Client.train, DSEConv, DSELinear of algorithm/fdse.py")
SETTINGS = dict(rounds=4, steps=2, batch_size=8, lr=.02, lmbd=dict(latest=.1, first=10.), beta=.5, tau=.5)
CLIENTS = dict(a=16, b=16, c=16)
BLOCKS = dict(latest=[{}, dict(use_dse_activate=True), dict(shortcut=False), dict(ratio=1)], first=[{}])


def inputs():
    "{client: (x, y)}: images of 2 x 7 x 7 in eighths, each client's shifted."
    g, data = torch.Generator().manual_seed(7), {}
    for i, (k, n) in enumerate(CLIENTS.items()):
        y = torch.arange(n) % 3
        x = torch.randint(-8, 9, (n, 2, 7, 7), generator=g).double()/8 + y.view(-1, 1, 1, 1)*.25 + i*.5
        data[k] = x, y
    return data


def published(checkout, easyfl):
    "The module algorithm/fdse.py of a checkout; of FLGo only `fmodule` is the real one."
    sys.path.insert(0, str(easyfl))
    for name in ("flgo", "flgo.utils", "flgo.algorithm", "flgo.algorithm.fedavg"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(Path(easyfl, *name.split(".")))]
    sys.modules["flgo.algorithm"].fedavg = sys.modules["flgo.algorithm.fedavg"]
    sys.modules["flgo.algorithm.fedavg"].Server = sys.modules["flgo.algorithm.fedavg"].Client = object
    spec = importlib.util.spec_from_file_location("theirs", Path(checkout, "algorithm", "fdse.py"))
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    return theirs


def network_of(theirs, first, options):
    "A class of networks of the authors' blocks, 7 x 7 images to three classes."
    pad = {} if first else dict(padding=1)
    linear = {} if first else options

    class Small(theirs.fuf.FModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.conv1 = theirs.DSEConv(2, 4, 3, **pad, **options)
            self.conv2 = theirs.DSEConv(4, 6, 3, stride=2, **pad, **options)
            self.fc1 = theirs.DSELinear(24, 6, **linear)
            self.head = nn.Linear(6, 3)
            self.double()
            with torch.no_grad():
                for p in self.parameters(): p.copy_(((p + .4*torch.randn_like(p))*1000).round()/1000)

        def forward(self, x):
            x = F.avg_pool2d(self.conv2(self.conv1(x)), 2)
            return self.head(self.fc1(x.flatten(1)))
    return Small


class Calculator:
    "What FLGo's calculator is asked for."
    def get_optimizer(self, model, lr, **how): return torch.optim.SGD(model.parameters(), lr=lr)
    def compute_loss(self, model, batch): return dict(loss=F.cross_entropy(model(batch[0]), batch[1]))


def run(theirs, network, data, which, rounds):
    "(first state, after each round: the shared entries and the clients' own)."
    how = SETTINGS | dict(lmbd=SETTINGS["lmbd"][which])

    class Server(theirs.Server):
        def init_algo_para(self, given): self.__dict__ |= {k: how[k] for k in given}
        def sample(self): return list(range(len(self.clients)))
        def communicate(self, ids):
            asked = ((self.clients[i], self.pack(i)) for i in ids)
            return dict(model=[c.pack(c.answer(package))["model"] for c, package in asked])

    class Client(theirs.Client):
        def answer(self, package):
            model = self.unpack(package)
            self.train(model)
            return model
        def get_batch_data(self):
            self.at += 1
            return self.batches[(self.at - 1) % len(self.batches)]

    server = Server()
    server.model, server.device, server.current_round = network(), "cpu", 1
    Row = namedtuple("Row", "train_data")
    server.clients = [Row(x) for x, _ in data.values()]
    server.initialize()
    start, size = server.model.state_dict(), how["batch_size"]
    server.clients = []
    for x, y in data.values():
        c = Client()
        c.server, c.device, c.calculator, c.at = server, "cpu", Calculator(), 0
        c.batches = list(zip(x.split(size), y.split(size)))
        c.learning_rate, c.weight_decay, c.momentum, c.clip_grad = how["lr"], 0., 0., 0.
        c.num_steps, c.lmbd, c.beta = how["steps"], how["lmbd"], how["beta"]
        c.initialize()
        server.clients.append(c)
    start = {k: v.tolist() for k, v in copy.deepcopy(start).items() if v.ndim}
    seen, short = [], lambda s: {k: flat(v) for k, v in s.items() if v.ndim}
    flat = lambda v: [float(f"{q:.10g}") for q in v.flatten().tolist()]
    for _ in range(rounds):
        server.iterate()
        server.current_round += 1
        shared = {k: v for k, v in server.model.state_dict().items() if k in server.shared_weight_keys}
        seen.append(dict(shared=short(shared), own=[short(s) for s in server.client_states]))
    return start, seen


if __name__ == "__main__":
    latest, first, easyfl = sys.argv[1:]
    torch.Tensor.float = torch.Tensor.double
    cvxopt.solvers.options |= dict(abstol=1e-13, reltol=1e-13, feastol=1e-13, show_progress=False)
    data, runs = inputs(), []
    for which, checkout in dict(latest=latest, first=first).items():
        theirs = published(checkout, easyfl)
        for options in BLOCKS[which]:
            n = 2 if options else SETTINGS["rounds"]
            start, rounds = run(theirs, network_of(theirs, which == "first", options), data, which, n)
            runs.append(dict(release=which, options=options, start=start, rounds=rounds))
    out = dict(source=SOURCE, settings=SETTINGS, runs=runs,
               data={k: [x.tolist(), y.tolist()] for k, (x, y) in data.items()})
    FILE.write_text(json.dumps(out) + "\n")
