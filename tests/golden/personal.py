"""Golden numbers of FedBN, Ditto, LG-FedAvg and DSBN from public implementations.

`python tests/golden/personal.py CHECKOUTS`, a folder with the checkouts med-air/FedBN (2fa38ad),
TsingZ0/PFLlib (d832e76), WwZzz/easyFL (ea07f1d) and wgchang/DSBN (e0cd4bf), each as owner+name;
writes fedbn.json, ditto.json, lgfedavg.json and dsbn.json beside this file. Their code runs as it is.
"""
import ast, importlib.util, json, sys, types
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent
numbers = lambda state: {k: v.tolist() for k, v in state.items()}


class Named(nn.Module):
    "Two BatchNorm layers, in the order of a Sequential; `bn` in their names where asked for."
    def __init__(self, bn="bn"):
        super().__init__()
        layers = {f"{bn}0": nn.BatchNorm1d(1), "fc": nn.Linear(1, 3), f"{bn}2": nn.BatchNorm1d(3)}
        for k, m in layers.items(): self.add_module(k, m)
        self.head = nn.Linear(3, 2)


def values(model, seed):
    "The model in float64, its entries drawn."
    g = torch.Generator().manual_seed(seed)
    for k, v in model.double().state_dict().items():
        drawn = torch.rand(v.shape, generator=g, dtype=torch.float64)
        v.copy_(drawn if v.is_floating_point() else torch.tensor(seed))
    return model


OURS = {"bn0": "features.0", "fc": "features.1", "bn2": "features.2", "head": "head"}
our_name = lambda k: OURS[k.partition(".")[0]] + "." + k.partition(".")[2]
renamed = lambda state: {our_name(k): v for k, v in numbers(state).items()}


def load(path, name):
    "A module from a file."
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fedbn(root):
    "`communication` of federated/fed_digits.py, mode fedbn."
    tree = ast.parse((root/"med-air+FedBN/federated/fed_digits.py").read_text())
    tree.body = [n for n in tree.body if getattr(n, "name", "") == "communication"]
    models, server, weights = [values(Named(), s) for s in (1, 2)], values(Named(), 3), [.25, .75]
    given = dict(models=[renamed(m.state_dict()) for m in models], server=renamed(server.state_dict()))
    scope = dict(torch=torch, client_num=2)
    exec(compile(tree, "fed_digits.py", "exec"), scope)
    new, models = scope["communication"](types.SimpleNamespace(mode="fedbn"), server, models, weights)
    return given | dict(weights=weights, new_server=renamed(new.state_dict()),
                        new_models=[renamed(m.state_dict()) for m in models])


def ditto(root):
    "`PerturbedGradientDescent` of system/flcore/optimizers/fedoptimizer.py."
    theirs = load(root/"TsingZ0+PFLlib/system/flcore/optimizers/fedoptimizer.py", "fedoptimizer")
    net, anchor = values(nn.Linear(3, 2), 5), values(nn.Linear(3, 2), 6)
    x = torch.rand(6, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    given = dict(start=numbers(net.state_dict()), anchor=numbers(anchor.state_dict()), x=x.tolist(),
                 y=[0, 1, 1, 0, 1, 0], lr=.3, mu=.7, steps=4)
    opt = theirs.PerturbedGradientDescent(net.parameters(), lr=.3, mu=.7)
    for _ in range(4):
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), torch.tensor(given["y"])).backward()
        opt.step([p.detach() for p in anchor.parameters()], "cpu")
    return given | dict(end=numbers(net.state_dict()))


def lgfedavg(root):
    "`Client.unpack` of resources/algorithm/lgfedavg.py, p=2: the head's weight and bias."
    sys.path.insert(0, str(root/"WwZzz+easyFL"))
    theirs = load(root/"WwZzz+easyFL/resources/algorithm/lgfedavg.py", "lgfedavg")
    client = theirs.Client.__new__(theirs.Client)
    own, sent = values(Named(), 8), values(Named(), 9)
    given = dict(own=renamed(own.state_dict()), sent=renamed(sent.state_dict()))
    client.model, client.p = own, 2
    return given | dict(held=renamed(client.unpack(dict(model=sent)).state_dict()))


def dsbn(root):
    "`DomainSpecificBatchNorm2d` of model/dsbn.py with two branches, in evaluation."
    theirs = load(root/"wgchang+DSBN/model/dsbn.py", "dsbn")
    layer = values(theirs.DomainSpecificBatchNorm2d(2, 2), 10).eval()
    x = torch.rand(3, 2, 2, 2, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    out = [layer(x, [d])[0].tolist() for d in range(2)]
    return dict(branches=[numbers(b.state_dict()) for b in layer.bns], x=x.tolist(), out=out)


SOURCES = dict(fedbn="med-air/FedBN 2fa38ad, federated/fed_digits.py: communication",
               ditto="TsingZ0/PFLlib d832e76, fedoptimizer.py: PerturbedGradientDescent",
               lgfedavg="WwZzz/easyFL ea07f1d, resources/algorithm/lgfedavg.py: Client.unpack",
               dsbn="wgchang/DSBN e0cd4bf, model/dsbn.py: DomainSpecificBatchNorm2d")

if __name__ == "__main__":
    for key, source in SOURCES.items():
        made = dict(source=source) | globals()[key](Path(sys.argv[1]))
        (HERE/f"{key}.json").write_text(json.dumps(made) + "\n")
