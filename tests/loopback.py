"""Flower without its processes: a message is cut into bytes, answered by the client's app, and so is its answer."""
import sys
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import MagicMock
import pytest
from fdgnb.flower.wire import pack, unpack                              # before flwr: it turns its telemetry off
from fdgnb.flower.engine import travel
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity


class Grid:
    """Flower's grid, in this process. A test may set what goes wrong:

    before(asked, node, about) is True where a message is lost; after(asked, node, payload, said) changes an answer."""
    def __init__(self, app, nodes, run_config=()):
        "nodes: {number: (registered name, node configuration)}."
        self.app, self.nodes, self.run_config = app, dict(nodes), dict(run_config)
        self.before = self.after = None
        self.number, self.replies, self.sent = 0, {}, []                  # sent: (asked, node, content)
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1           # a message asks for them

    def get_node_ids(self): return list(self.nodes)

    def get_nodes(self): return [SimpleNamespace(node_id=n, name=name) for n, (name, _) in self.nodes.items()]

    def push_messages(self, messages): return [self.push(message) for message in messages]

    def push(self, message):
        "Answer a message; its number."
        self.number += 1
        number, node = str(self.number), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        message.content = travel(message.content)
        try: reply = self.answer(message, node)
        except Exception as e: reply = Message(Error(code=2, reason=repr(e)), reply_to=message)
        if reply: self.replies[number] = reply
        return number

    def answer(self, message, node):
        "The reply of a node; None where a message is lost."
        asked = message.metadata.message_type.split(".")[-1]
        self.sent.append((asked, node, message.content))
        if self.before and self.before(asked, node, unpack(message.content)[1]): return None
        if node not in self.nodes: return None
        context = Context(1, node, self.nodes[node][1], RecordDict(), self.run_config)
        reply = self.app(message, context)
        if reply.has_error(): return reply
        content = reply.content
        if self.after:
            payload, said = unpack(content)
            self.after(asked, node, payload, said)
            content = pack(payload, said)
        return Message(travel(content), reply_to=message)

    def pull_messages(self, numbers): return [self.replies.pop(n) for n in list(numbers) if n in self.replies]


def play_here(server_app, client_app, num_supernodes, **_):
    "In place of Flower's `run_simulation`: the same apps, in this process."
    nodes = {number: ("", {}) for number in range(num_supernodes)}
    server_app(Grid(client_app, nodes), Context(1, 0, {}, RecordDict(), {}))


@contextmanager
def without_processes():
    "Inside, `fit(..., engine='flower')` starts neither Ray nor another process."
    ray = MagicMock(__spec__=ModuleSpec("ray", None), is_initialized=lambda: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", ray)
        patch.setattr("flwr.simulation.run_simulation", play_here)
        yield
