"""Golden numbers of drift, sharpness and reweighting: `python tests/golden/make_drift.py CHECKOUTS`.

CHECKOUTS holds clones named fednova, flower, fedsam, arfl, fedheal, fedbr, feddyn, domainbed, feddg; their
code is run, not copied. What they import beside torch and numpy is replaced by empty modules.
"""
import importlib.util, json, operator, os, sys, tempfile, types, warnings
from collections import OrderedDict
from numbers import Number
from pathlib import Path
from unittest.mock import MagicMock
import numpy as np
import torch

warnings.filterwarnings("ignore")
HERE, ROOT = Path(__file__).parent, Path(sys.argv[1] if len(sys.argv) > 1 else ".")
WORLD = dict(start=[.5, -1., 2.], centers=[[1., 0., -1.], [-2., 1., .5]],
             curvature=[[1., .5, 2.], [.3, 1., .7]],
             steps=[2, 5], n=[30, 10], lr=.1)
SOURCES = dict(
    fednova="JYWa/FedNova 47b4e09, distoptim/FedNova.py", flower="adap/flower fdef7af, flwr/server/strategy",
    fedsam="debcaldarola/fedsam 64bbf93, models/clients/minimizers.py",
    arfl="lishenghui/arfl 0b3b49b, models/server.py",
    fedheal="yuhangchen0/FedHEAL 770e094, models/utils/federated_model.py",
    fedbr="LINs-lab/FedBR 6c4c539, fedbr/algorithms.py, class FedCM",
    feddyn="alpemreacar/FedDyn 48a19fa (by FedDyn's authors), utils_methods.py",
    domainbed="facebookresearch/DomainBed b93c22a, domainbed/algorithms.py, class GroupDRO",
    feddg="inouye-lab/FedDG_Benchmark da58f76, src/server.py, class FedGMA")


def load(path, **stubs):
    "A file as a module, some imports replaced."
    for name, module in stubs.items(): sys.modules[name.replace("__", ".")] = module
    spec = importlib.util.spec_from_file_location(Path(path).stem + "_golden", ROOT/path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keep(key, source, given, made):
    "Write tests/golden/<key>.json."
    plain = lambda v: v.tolist() if hasattr(v, "tolist") else v
    made = {k: plain(v) for k, v in made.items()}
    text = json.dumps(dict(source=SOURCES[source], given=given, made=made), indent=1)
    (HERE/f"{key}.json").write_text(text + "\n")


def exact(v): return torch.tensor(v, dtype=torch.float64)


def grad(w, k): return exact(WORLD["curvature"][k])*(w.detach() - exact(WORLD["centers"][k]))


def fednova():
    FedNova = load("fednova/distoptim/FedNova.py", comm_helpers=MagicMock()).FedNova
    p, cases = np.array(WORLD["n"])/sum(WORLD["n"]), {}
    for name, momentum, mu in (("plain", 0., 0.), ("momentum", .9, 0.), ("proximal", 0., .5)):
        clients = []
        for k in range(2):
            w = torch.nn.Parameter(exact(WORLD["start"]))
            opt = FedNova([w], ratio=p[k], gmf=0, mu=mu, lr=WORLD["lr"], momentum=momentum)
            for _ in range(WORLD["steps"][k]):
                w.grad = grad(w, k)
                opt.step()
            clients.append((opt, w))
        reach = [float(o.local_normalizing_vec) for o, _ in clients]
        new, effective = exact(WORLD["start"]), float(p @ reach)
        for o, w in clients:
            o.average(tau_eff=effective)                                   # its share, the sum left out
            new = new + (w.detach() - exact(WORLD["start"]))
        cases[name] = dict(momentum=momentum, mu=mu, reach=reach, new=new.tolist())
    keep("fednova", "fednova", WORLD, cases)


def flower():
    moves, tau = [[.3, -.2, .001], [.5, .4, -.1], [-.3, .0001, .2]], .01
    class Opt:
        "What the strategies build on: the average and the current weights."
        def aggregate_fit(self, server_round, results, failures): return results, {}
    stubs = dict(flwr__common=MagicMock(), flwr__server__client_proxy=MagicMock(), flwr=MagicMock(),
                 flwr__server=MagicMock())
    stubs["flwr__common"].parameters_to_ndarrays = lambda v: v
    stubs["flwr__common"].ndarrays_to_parameters = lambda v: v
    for key, cls in (("fedadam", "FedAdam"), ("fedyogi", "FedYogi"), ("fedadagrad", "FedAdagrad")):
        source = (ROOT/f"flower/framework/py/flwr/server/strategy/{key}.py").read_text()
        for name, m in stubs.items(): sys.modules[name.replace("__", ".")] = m
        space = {"__name__": key, "FedOpt": Opt}
        exec(source.replace("from .fedopt import FedOpt", ""), space)
        s = object.__new__(space[cls])
        s.eta, s.tau, s.beta_1, s.beta_2 = .1, tau, .0 if key == "fedadagrad" else .9, .99
        s.current_weights, s.m_t, s.v_t, out = [np.zeros(3)], [np.zeros(3)], [np.full(3, tau**2)], []
        for r, d in enumerate(moves):
            old = s.current_weights[0]
            s.aggregate_fit(r + 1, [old + np.array(d)], [])
            correction = (1 - .99**(r + 2))**.5/(1 - .9**(r + 2)) if key == "fedadam" else 1.
            out.append(((s.current_weights[0] - old)/correction).tolist())
            s.current_weights = [old + np.array(out[-1])]
        keep(key, "flower", dict(moves=moves, eta=.1, tau=tau), dict(steps=out))


def sharpness():
    m = load("fedsam/models/clients/minimizers.py")
    for key, cls, how in (("fedsam", m.SAM, dict(rho=.3, eta=0.)), ("fedasam", m.ASAM, dict(rho=.3, eta=.2))):
        net = torch.nn.Linear(2, 1, dtype=torch.float64)
        given = dict(weight=[[.5, -1.]], bias=[2.], g_weight=[[.7, -.1]], g_bias=[.4], **how)
        with torch.no_grad():
            net.weight.copy_(exact(given["weight"])); net.bias.copy_(exact(given["bias"]))
        net.weight.grad, net.bias.grad = exact(given["g_weight"]), exact(given["g_bias"])
        cls(torch.optim.SGD(net.parameters(), lr=1.), net, **how).ascent_step()
        keep(key, "fedsam", given, dict(weight=net.weight.detach(), bias=net.bias.detach()))


def arfl():
    stubs = dict(ray=MagicMock(), utils=MagicMock(), utils__algorithms=MagicMock(), utils__args=MagicMock())
    Server = load("arfl/models/server.py", **stubs).Server
    losses, n, made = [.4, 1.2, .1, 5.], [10, 20, 5, 30], {}
    for reg in (.05, .3, 1., 20.):
        clients = [MagicMock(num_train_samples=k) for k in n]
        for c, v in zip(clients, losses): c.get_train_loss = lambda v=v: v
        s = types.SimpleNamespace(clients=clients, reg_weight=reg*sum(n), selected_clients=[], weights=[0.]*4,
                                  test_model=lambda *a, **kw: None)
        made[str(reg)] = list(map(float, Server.update_alpha(s, 0)[0]))
    keep("arfl", "arfl", dict(losses=losses, n=n), made)


def fedheal():
    stubs = {k: MagicMock() for k in ("torchvision", "utils", "utils__conf", "utils__util")}
    M = load("fedheal/models/utils/federated_model.py", **stubs).FederatedModel
    rounds = [[[1., .5, -.3], [.2, .4, -.1]], [[-1., .5, -.3], [.2, .4, .1]],
              [[1., .5, -.2], [.2, -.4, -.1]], [[-2., .1, -.3], [.2, .4, -.1]]]
    net = torch.nn.Module()
    net.w = torch.nn.Parameter(torch.zeros(3))
    fake = types.SimpleNamespace(
        args=types.SimpleNamespace(threshold=.3, beta=.4), online_clients=[0, 1], online_num=2, mask_dict={},
        client_update={}, euclidean_distance={}, previous_weights={}, previous_delta_weights={}, device="cpu",
        increase_history={}, global_net=net, nets_list=[MagicMock(), MagicMock()])
    path = []
    for r, moves in enumerate(rounds):
        fake.epoch_index = r
        for k, d in enumerate(moves):
            diff = {"w": -torch.tensor(d)}
            fake.mask_dict[k] = mask = M.consistency_mask(fake, k, diff)
            fake.client_update[k] = masked = {"w": diff["w"]*mask["w"]}
            M.compute_distance(fake, k, masked, ["w"])
        M.aggregate_nets_parameter(fake, M.get_params_diff_weights(fake))
        path.append(net.w.detach().tolist())
    keep("fedheal", "fedheal", dict(rounds=rounds, tau=.3, beta=.4), dict(path=path))


def fedcm():
    source = (ROOT/"fedbr/fedbr/algorithms.py").read_text()
    start, end = source.index("class FedCM(Optimizer)"), source.index("class FedProx(Optimizer)")
    space = dict(Optimizer=torch.optim.Optimizer, required=object(), torch=torch)
    exec(source[start:end], space)
    w, delta = torch.nn.Parameter(exact(WORLD["start"])), exact([.2, -.3, .1])
    opt = space["FedCM"]([w], lr=WORLD["lr"])
    for _ in range(3):
        w.grad = grad(w, 0)
        opt.step([delta])
    keep("fedcm", "fedbr", WORLD | dict(delta=delta.tolist(), steps=3, alpha=.1), dict(new=w.detach()))


def part_of(path, start, end, **space):
    "What the lines of a file from `start` to `end` define."
    source = (ROOT/path).read_text()
    exec(source[source.index(start):source.index(end)], space)
    return space


def feddyn():
    "Three rounds of a linear classifier, two of three clients in each but the first; whole batches."
    unused = ("torchvision", "torchvision.transforms", "torchvision.models", "LEAF", "LEAF.utils_eval",
              "LEAF.utils_eval.language_utils", "LEAF.utils_eval.model_utils")
    for name in unused: sys.modules[name] = MagicMock(__all__=[])
    sys.path.insert(0, str(ROOT/"feddyn"))
    import utils_methods as m
    rng, steps, rounds, lr = np.random.default_rng(0), 4, 4, .2
    x, y = rng.normal(size=(3, 6, 2)).astype("float32"), rng.integers(3, size=(3, 6, 1)).astype("float32")
    data = types.SimpleNamespace(n_client=3, clnt_x=x, clnt_y=y, tst_x=x[0], tst_y=y[0], name="toy",
                                 dataset="synt")
    model = lambda: m.client_model("Linear", [2, 3])
    start = model()
    with torch.no_grad():
        for p in start.parameters(): p.copy_(torch.from_numpy(rng.normal(size=p.shape)))
    flat = lambda net: m.get_mdl_params([net])[0].tolist()
    def chosen(r, seed):
        "Who takes part, as the repository draws it."
        while True:
            np.random.seed(seed)
            if len(who := np.flatnonzero(np.random.uniform(size=3) <= .7)): return who.tolist()
            seed += 1
    usual = dict(data_obj=data, act_prob=.7, learning_rate=lr, batch_size=6, com_amount=rounds, print_per=99,
                 weight_decay=0., model_func=model, save_period=1, lr_decay_per_round=1., rand_seed=0)
    given = dict(x=x.tolist(), y=y[..., 0].astype(int).tolist(), start=flat(start), lr=lr, steps=steps,
                 who=[chosen(r, r) for r in range(rounds)])
    where = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.makedirs("Output/toy")
        for key, train, own in (("fedprox", m.train_FedProx, dict(epoch=steps, mu=.5)),
                                ("scaffold", m.train_SCAFFOLD, dict(n_minibatch=steps)),
                                ("feddyn", m.train_FedDyn, dict(epoch=steps, alpha_coef=.3))):
            out = train(init_model=start, **usual, **own)[0]
            hyper = {k: v for k, v in own.items() if k in ("mu", "alpha_coef")}
            keep(key, "feddyn", given | hyper, dict(models=[flat(net) for net in out]))
        os.chdir(where)


def groupdro():
    GroupDRO = part_of("domainbed/domainbed/algorithms.py", "class GroupDRO(ERM)", "class MLDG(ERM)",
                       ERM=object, torch=torch, F=torch.nn.functional)["GroupDRO"]
    g, eta, made = torch.Generator().manual_seed(0), .7, []
    logits = 2*torch.randn(4, 3, 5, 3, generator=g)                        # rounds, clients, samples, classes
    y = torch.randint(3, (3, 5), generator=g)
    fake = types.SimpleNamespace(q=torch.Tensor(), hparams=dict(groupdro_eta=eta), predict=lambda x: x,
                                 optimizer=MagicMock())
    for x in logits:
        total = GroupDRO.update(fake, [(v.clone().requires_grad_(), t) for v, t in zip(x, y)])["loss"]
        made.append(dict(q=fake.q.tolist(), loss=total))
    keep("groupdro", "domainbed", dict(logits=logits.tolist(), y=y.tolist(), eta=eta), dict(rounds=made))


def fedgma():
    "As released: the mask is not the paper's, see the page."
    space = part_of("feddg/src/utils.py", "class ParamDict(OrderedDict)", "# class TransformSubset",
                    OrderedDict=OrderedDict, torch=torch, operator=operator, Number=Number)
    FedGMA = part_of("feddg/src/server.py", "class FedGMA(FedAvg)", "class ScaffoldServer", FedAvg=object,
                     tqdm=lambda v, **kw: v, ParamDict=space["ParamDict"])["FedGMA"]
    net = lambda w: torch.nn.ParameterDict(dict(w=torch.nn.Parameter(torch.tensor(w, dtype=torch.float64))))
    start, n, tau = [.5, -1., 2., 0.], [10, 30, 20, 40], .4
    models = [[1., -2., 2.5, .3], [.7, .5, 1., .1], [1.5, -.5, 2.5, 0.], [1., -1.5, 3., -.2]]
    clients = [types.SimpleNamespace(model=net(w)) for w in models]
    fake = types.SimpleNamespace(model=net(start), clients=clients, hparam=dict(hparam1=tau))
    FedGMA.aggregate(fake, range(4), [v/sum(n) for v in n])
    given = dict(start=start, models=models, n=n, tau=tau)
    keep("fedgma", "feddg", given, dict(released=fake.model["w"].detach()))


if __name__ == "__main__":
    for make in (fednova, flower, sharpness, arfl, fedheal, fedcm, feddyn, groupdro, fedgma):
        try: make()
        except Exception as e: print(make.__name__, type(e).__name__, e)
