"""Flower's engine without its runtime: a client's messages are cut into bytes and answered in this process."""
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from fdgnb.federation.engine import closing
from fdgnb.federation.node import ASKS
from fdgnb.flower.engine import Loopback, message_type
from fdgnb.flower.simulation import Simulation, answer_in_process, write_nodes

ASKED = {message_type(what): what for what in ASKS}


@contextmanager
def open_loopback(fed, workers=None):
    "The engine of a simulation, over a grid of this process; the clients are read from a file as in another one."
    with TemporaryDirectory() as folder:
        write_nodes(fed, Path(folder))
        engine = Simulation(fed, workers, Path(folder))
        engine.nodes = {k: i for i, k in enumerate(engine.clients)}
        engine.grid = Loopback(lambda type, content, node: answer_in_process(folder, ASKED[type], content),
                               engine.nodes.values())
        with closing(engine): yield engine
