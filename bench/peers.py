"""The same FedAvg through another package, for `make bench`: fluke-fl 0.8.1.

Network, first weights, images, batch size, optimizer and clients are those of `runner`; evaluation is off.
fluke trains client after client with torch on all cores, as it does by default; it is imported only when its
class is used.

Flower is left out: flwr[simulation] 1.41.0 never finished a round where this was written, a busy machine of
two cores. Ray 2.55.1 gives its agents 15 seconds to start, which they missed. Whoever adds it should count
the replies: when clients fail, its FedAvg goes on and still ends a "round"."""
import sys, time
from contextlib import redirect_stdout
import torch
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


KINDS = dict(fluke=Fluke)
