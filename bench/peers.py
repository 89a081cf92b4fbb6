"""The same FedAvg through two other packages, for `make bench`: fluke-fl 0.8.1 and flwr[simulation] 1.41.0.

Network, first weights, images, batch size, optimizer and clients are those of `runner`; evaluation is off.
Each package uses the processor as it does by default: fluke trains client after client with torch on all
cores, Flower's simulation starts a process per core. A package is imported only when its class is used."""
import os, sys, tempfile, time
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from fdgnb import models
from fdgnb.core import generator
from runner import CORES, LR, network


class Split:
    "A fluke splitter that keeps a domain per client; nobody has a test set."
    def __init__(self, data): self.data = data

    def assign(self, n_clients, batch_size):
        from fluke.data import FastDataLoader
        how = dict(num_labels=10, batch_size=batch_size, shuffle=True)
        load = lambda d: FastDataLoader(d.x.float()/255, d.y, **how)
        return ([load(d) for d in self.data.domains.values()], [None]*n_clients), None


class Fluke:
    "fluke's FedAVG through its Python interface."
    def __init__(self, name, data, batch):
        models.torchvision_models()                                      # fluke imports torchvision
        from fluke import DDict, FlukeENV
        FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        torch.set_num_threads(CORES)
        self.name, self.data = name, data
        optimizer, scheduler = DDict(name="SGD", lr=LR), DDict(name="StepLR", step_size=1, gamma=1)
        client = DDict(batch_size=batch, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimizer,
                       scheduler=scheduler)
        self.settings = dict(client=client, server=DDict(weighted=True))

    def rounds(self, n):
        from fluke import DDict
        from fluke.algorithms.fedavg import FedAVG
        from fluke.utils import ClientObserver, FederationObserver
        seconds = []

        class Watch(ClientObserver, FederationObserver):
            def start_round(self, round, global_model): self.start = time.perf_counter()
            def end_round(self, round): seconds.append(time.perf_counter() - self.start)
            def start_fit(self, round, client_id, model): models.set_generator(model, generator(1))

        settings = DDict(model=network(self.name), **self.settings)
        run = FedAVG(len(self.data.domains), Split(self.data), settings)
        run.set_callbacks(Watch())
        with redirect_stdout(sys.stderr): run.run(n, 1.)
        return seconds


@cache
def images(file):
    "A client's samples from its file, read once per process."
    x, y = torch.load(file)
    return TensorDataset(x.float()/255, y)


def client_app(name, folder, batch):
    "Flower's client, as in its quickstart: a network and a DataLoader per message."
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    app = ClientApp()

    @app.train()
    def train(message, context):
        net = models.set_generator(network(name), generator(1))
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        net.train()
        samples = images(f"{folder}/{context.node_config['partition-id']}.pt")
        opt = torch.optim.SGD(net.parameters(), lr=LR)
        for x, y in DataLoader(samples, batch, shuffle=True):
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
        metrics = MetricRecord({"num-examples": len(samples)})
        reply = RecordDict(dict(arrays=ArrayRecord(net.state_dict()), metrics=metrics))
        return Message(reply, reply_to=message)
    return app


class Flower:
    "Flower's simulation: ServerApp, ClientApp and FedAvg of its message interface; a client reads its file."
    def __init__(self, name, data, batch):
        os.environ |= dict(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")    # nothing is sent
        self.name, self.clients, self.batch = name, len(data.domains), batch
        self.folder = tempfile.TemporaryDirectory()
        for k, d in enumerate(data.domains.values()):
            torch.save((d.x, d.y), Path(self.folder.name)/f"{k}.pt")

    def rounds(self, n):
        from flwr.app import ArrayRecord
        from flwr.serverapp import ServerApp
        from flwr.serverapp.strategy import FedAvg
        from flwr.simulation import run_simulation
        server, seconds = ServerApp(), []

        class Timed(FedAvg):
            def configure_train(self, *args):
                self.start_time = time.perf_counter()
                return super().configure_train(*args)

            def aggregate_train(self, server_round, replies):
                replies = list(replies)
                good = [r for r in replies if not r.has_error()]         # FedAvg goes on without those that failed
                if len(good) < self.min_train_nodes: raise RuntimeError("a client of Flower's failed")
                out = super().aggregate_train(server_round, replies)
                seconds.append(time.perf_counter() - self.start_time)
                return out

        @server.main()
        def main(grid, context):
            k = self.clients
            fedavg = Timed(fraction_evaluate=0., min_train_nodes=k, min_available_nodes=k)
            fedavg.start(grid, ArrayRecord(network(self.name).state_dict()), num_rounds=n)

        client = client_app(self.name, self.folder.name, self.batch)
        resources = dict(client_resources=dict(num_cpus=1, num_gpus=0.))
        with redirect_stdout(sys.stderr):
            run_simulation(server, client, self.clients, backend_config=resources)
        return seconds


KINDS = dict(fluke=Fluke, flower=Flower)
