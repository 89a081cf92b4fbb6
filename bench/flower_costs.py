"""What a round costs over Flower: `python bench/flower_costs.py [KIND ...] [--clients 4 16 64] [--rounds 6]`.

Kinds: serial (threads), simulation (engine="flower"), quickstart (Flower's own FedAvg with the same network, data and
local steps, written as its PyTorch quickstart), deployment (a server and a SuperNode for each client on this machine,
with TLS and keys; three rounds, and no more than 16 clients: each message starts a process). Each is played in a
process of its own; the table has seconds to start and end, the median of a round after the first, the most memory of
the processes together (shared pages counted once) and the bytes that Flower carries per round: of a deployment all that
passed this machine's loopback, TLS and polling included. It is written to reports/flower/costs.csv, where other
rows stay. Beside it, in imports.csv, what a site's process spends before it answers a message: processor
seconds of its imports."""
import argparse, json, logging, os, subprocess, sys, threading, time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
import psutil

os.environ |= dict(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0",
                   OMP_NUM_THREADS="1", TQDM_DISABLE="1")
KINDS = "serial", "simulation", "quickstart", "deployment"
ROOT = Path(__file__).resolve().parent.parent
DEPLOYED = dict(clients=16, rounds=3)                     # at most
HOW = dict(backbone="lenet", size=16, batch_size=16, lr=.01, momentum=.9, local_epochs=1, eval_local=0)


def dataset(clients, samples=200):
    "Digits, dealt to so many clients; each has 200 samples, drawn with replacement."
    import torch, fdgnb
    from fdgnb.data.catalogue import get_dataset
    digits = get_dataset("digits", size=16)
    domains, rng = {}, torch.Generator().manual_seed(0)
    for k in range(clients):
        from_ = list(digits.domains.values())[k % len(digits.domains)]
        rows = torch.randint(len(from_.y), (samples,), generator=rng)
        domains[f"c{k}"] = fdgnb.Domain(f"c{k}", from_.x[rows], from_.y[rows])
    return fdgnb.Dataset("costs", domains, digits.classes)


def play_ours(engine, clients, rounds):
    "Seconds of each round of `fit`, and the bytes per round that Flower carried."
    import fdgnb
    from fdgnb.flower import engine as flower
    carried, count = [], flower.Flower.count
    def note(self, *given):
        count(self, *given)
        carried.append(self.wire[-1])
    flower.Flower.count = note
    run = fdgnb.fit("fedavg", dataset(clients), rounds=rounds, engine=engine, progress=False, **HOW)
    later = [n for round, *_, n in carried if round > 1]
    return run.seconds, sum(later)/max(1, rounds - 1)


def make_client(clients):
    "Flower's ClientApp: local epochs and evaluation as `fit` does them, on the same samples."
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from torch import nn
    from fdgnb import models
    app, kept = ClientApp(), {}

    def part_of(context):
        "The network and the samples of this client, read once a process."
        if not kept: kept.update(data=dataset(clients), net=models.set_generator(
            models.get("lenet", 10, size=16), torch.Generator().manual_seed(0)))
        torch.set_num_threads(1)
        domain = kept["data"].domains[f"c{context.node_config['partition-id']}"]
        cut = int(.8*len(domain.y))
        return kept["net"], domain.x.float()/255, domain.y, cut

    @app.train()
    def train(message, context):
        net, x, y, cut = part_of(context)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=HOW["lr"], momentum=HOW["momentum"])
        for rows in torch.randperm(cut).split(HOW["batch_size"]):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        content = {"arrays": ArrayRecord(net.state_dict()),
                   "metrics": MetricRecord({"loss": float(loss), "num-examples": cut})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        net, x, y, cut = part_of(context)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.eval()
        with torch.no_grad(): hits = (net(x[cut:]).argmax(1) == y[cut:]).float().mean()
        metrics = MetricRecord({"accuracy": float(hits), "num-examples": len(y) - cut})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    return app


def play_quickstart(clients, rounds):
    "Seconds of each round of Flower's FedAvg, and the bytes of its arrays per round."
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from fdgnb import models
    logging.getLogger("flwr").setLevel(logging.ERROR)
    first = ArrayRecord(models.get("lenet", 10, size=16).state_dict())
    stamps, server = [], ServerApp()

    @server.main()
    def main(grid, context):
        strategy = FedAvg(min_available_nodes=clients)
        train = strategy.configure_train
        strategy.configure_train = lambda *given: stamps.append(time.perf_counter()) or train(*given)
        strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)
        stamps.append(time.perf_counter())

    cores = len(os.sched_getaffinity(0))
    how = dict(init_args=dict(num_cpus=cores, include_dashboard=False, log_to_driver=False),
               client_resources=dict(num_cpus=1, num_gpus=0.))
    run_simulation(server, make_client(clients), clients, backend_config=how)
    size = sum(len(array.data) for array in first.values())
    return [b - a for a, b in zip(stamps, stamps[1:])], 3*clients*size          # down to train, up, down to evaluate


def write_images(folder, clients):
    "The samples as <folder>/<client>/<class>/<image>, as a site has them."
    from PIL import Image
    data = dataset(clients)
    for name, domain in data.domains.items():
        for i, (x, y) in enumerate(zip(domain.x, domain.y)):
            place = folder/name/data.classes[y]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x.permute(1, 2, 0).numpy()).save(place/f"{i:03}.png")
    return list(data.domains)


def play_deployment(clients, rounds):
    "Seconds of each round over SuperNodes, and the bytes per round that passed the loopback."
    sys.path[:0] = [str(ROOT/"tests")]
    from deployed import Deployment, kill_all
    from fdgnb.runs.checkpoints import load_checkpoint
    given = [f"--{k.replace('_', '-')}={v}" for k, v in HOW.items() if k != "size"] + [f"--hyper=size={HOW['size']}"]
    with TemporaryDirectory() as folder:
        folder = Path(folder)
        names = write_images(folder/"images", clients)
        deployment = Deployment(folder/"places", folder/"images", names, timeout=1200, wait=1200)
        try:
            deployment.start_server().wait_for("the server is ready")
            for name in names: deployment.start_site(name).wait_for("SuperNode ID")
            before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
            run = deployment.submit("fedavg", "out", "--target", "none", "--rounds", str(rounds), *given)
            if run.end(3600): raise SystemExit(run.text()[-2000:])
            sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
            meta = load_checkpoint(deployment.at_server/"out"/"checkpoint.safetensors")[1]
        finally: kill_all()
    return meta["seconds"], sent/rounds


def play(kind, clients, rounds):
    "Play one kind in this process, and print what it took as JSON."
    began = time.perf_counter()
    if kind == "deployment": seconds, sent = play_deployment(clients, rounds)
    elif kind == "quickstart": seconds, sent = play_quickstart(clients, rounds)
    else: seconds, sent = play_ours("flower" if kind == "simulation" else "threads", clients, rounds)
    whole = time.perf_counter() - began
    print(json.dumps(dict(rounds=seconds, whole=whole, sent=sent)), flush=True)


def memory_of(process):
    "Bytes of a process and its children, shared pages counted once."
    total = 0
    for p in [process, *process.children(recursive=True)]:
        try: total += p.memory_full_info().pss
        except psutil.Error: continue
    return total


def measure(kind, clients, rounds):
    "A line of the table."
    command = [sys.executable, "-W", "ignore", __file__, "--play", kind, str(clients), str(rounds)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    most, watched = 0, psutil.Process(child.pid)

    def watch():
        nonlocal most
        while child.poll() is None:
            try: most = max(most, memory_of(watched))
            except psutil.Error: return
            time.sleep(.5)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    out = child.communicate()[0]
    if child.returncode: raise SystemExit(f"{kind} with {clients} clients failed: exit code {child.returncode}")
    said = json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("{")))
    a_round = median(said["rounds"][1:])
    rest = said["whole"] - a_round*rounds
    return dict(kind=kind, clients=clients, round_s=round(a_round, 3), start_and_end_s=round(rest, 1),
                memory_mb=round(most/2**20), sent_mb_a_round=round(said["sent"]/2**20, 2))


IMPORTS = {"Python": "pass", "Flower": "import flwr.app, flwr.clientapp", "torch": "import torch",
           "Flower, torch and fdgnb, as a site": "import fdgnb.flower.site"}


def measure_imports(tries=5):
    "Processor seconds of a process that imports what a site's does, the least of several."
    lines = []
    for what, code in IMPORTS.items():
        command = [sys.executable, "-W", "ignore", "-c", f"import time\n{code}\nprint(time.process_time())"]
        took = min(float(subprocess.check_output(command, text=True)) for _ in range(tries))
        lines.append(dict(imports=what, cpu_s=round(took, 2)))
    return lines


def join_rows(file, measured):
    "The table with new rows in the place of their old ones, sorted, each beside the quickstart with as many clients."
    import pandas as pd
    old = pd.read_csv(file) if file.exists() else measured[:0]
    table = pd.concat([old, measured]).drop_duplicates(["kind", "clients"], keep="last")
    table = table.sort_values(["clients", "kind"], key=lambda c: c.map(KINDS.index) if c.name == "kind" else c)
    base = table[table.kind == "quickstart"].set_index("clients").round_s
    return table.assign(of_quickstart=(table.round_s/table.clients.map(base)).round(2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--clients", nargs="+", type=int, default=[4, 16, 64])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        kind, clients, rounds = given.play
        return play(kind, int(clients), int(rounds))
    import pandas as pd
    lines = []
    for clients in given.clients:
        for kind in given.kinds:
            if kind == "deployment" and clients > DEPLOYED["clients"]: continue
            rounds = min(given.rounds, DEPLOYED["rounds"]) if kind == "deployment" else given.rounds
            lines.append(measure(kind, clients, rounds))
            print(lines[-1], flush=True)
    folder = ROOT/"reports"/"flower"
    folder.mkdir(parents=True, exist_ok=True)
    table = join_rows(folder/"costs.csv", pd.DataFrame(lines))
    table.to_csv(folder/"costs.csv", index=False)
    pd.DataFrame(measure_imports()).to_csv(folder/"imports.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__": main()
