"""The server half: it knows no records, accounts or budgets, and goes on from named tensors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import udpfl
from udpfl.algorithms import ClientMessage, ServerStep, fedavg
from udpfl.errors import Unsupported
from udpfl.federation import Server, Stage

ROOT = Path(udpfl.__file__).parent
HALF = ["federation/server.py", "federation/request.py"]
MAY_KNOW = (
    "udpfl.errors",
    "udpfl.algorithms",
    "udpfl.mechanisms",
    "udpfl.engine",
    "udpfl.accounting.events",
    "udpfl.federation.request",
    "udpfl.federation.server",
    "udpfl.federation.stages",
)
"""All of the package that the server half may import: nothing of records, accounts or budgets."""


def imports(path):
    """Every module that a file imports from, by its full name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module, root=ROOT):
    """The file of a module of this package; the name of something inside it may follow."""
    parts = module.split(".")[1:]
    while parts:
        place = root.joinpath(*parts)
        for found in (place.with_suffix(".py"), place / "__init__.py"):
            if found.is_file():
                return found
        parts.pop()
    return None


def reached(start, root=ROOT):
    """What the server half imports, by way of `federation` too: (file, module)."""
    todo, seen = [root / name for name in start], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in imports(path):
            yield path.relative_to(root), module
            if module.startswith("udpfl.federation"):
                todo.append(file_of(module, root))


def forbidden(start, root=ROOT):
    allowed = tuple(f"{name}." for name in MAY_KNOW)
    return [
        f"{path}: {module}"
        for path, module in reached(start, root)
        if f"{module}.".startswith("udpfl.") and not f"{module}.".startswith(allowed)
    ]


def test_the_server_half_imports_nothing_that_knows_records_accounts_or_budgets():
    stages = [str(path.relative_to(ROOT)) for path in (ROOT / "federation/stages").glob("*.py")]
    assert len(stages) >= 7
    assert forbidden([*HALF, *stages]) == []


@pytest.mark.parametrize(
    "line",
    ["from udpfl.ledger.ledger import Ledger", "from udpfl.data import DataSet",
     "from udpfl.federation.plan import ReleasePlan", "import udpfl.accounting.budget",
     "def late():\n    from udpfl.federation.other import x"],
)  # fmt: skip
def test_an_import_that_knows_too_much_is_found(tmp_path, line):
    (tmp_path / "federation").mkdir()
    (tmp_path / "federation/server.py").write_text(line)
    (tmp_path / "federation/plan.py").write_text("")
    (tmp_path / "federation/other.py").write_text("import udpfl.ledger")
    assert forbidden(["federation/server.py"], tmp_path)


class Noted(Stage):
    """Counts rounds, and adds one to the model."""

    def __init__(self):
        self.rounds = torch.zeros(())

    def state(self):
        return {"noted.rounds": self.rounds}

    def restore(self, tensors):
        self.rounds = tensors["noted.rounds"]

    def request(self):
        return {"rounds": self.rounds}

    def publish(self, round_, server):
        self.rounds = self.rounds + 1
        return {**server, "model": server["model"] + 1}

    def measure(self):
        return {"noted": int(self.rounds)}


def message(value, client="a"):
    return ClientMessage(client, 1, {"update": torch.tensor([value])}, (), {"declared_size": 1})


def server(stage):
    method = fedavg.FedAvg(ServerStep())
    return Server(method, torch.zeros(1), [stage], learning_rate=lambda round_: 0.5 / round_)


def test_a_round_goes_through_the_stages_and_the_method():
    own = server(Noted())
    request = own.request(1)
    assert (request.round, request.learning_rate) == (1, 0.5)
    assert {name: t.tolist() for name, t in request.tensors.items()} == {
        "model": [0.0], "rounds": 0.0
    }  # fmt: skip
    assert own.receive(1, [message(2.0), message(4.0, "b")]) == [message(2.0), message(4.0, "b")]
    assert own.model.tolist() == [4.0]  # the mean of 2 and 4, and the stage's 1
    assert own.request(2).tensors["rounds"] == 1
    assert (own.round, own.measure()) == (1, {"noted": 1})


class Scaled(Stage):
    """Multiplies updates, and notes the model beside which it saw them."""

    def __init__(self, factor, hides=False):
        self.factor, self.hides_participation, self.seen = factor, hides, []

    def receive(self, round_, server, messages):
        values = [float(own.tensors["update"]) for own in messages]
        self.seen.append((server["model"].tolist(), values))
        return [
            message(self.factor * value, own.client)
            for value, own in zip(values, messages, strict=True)
        ]


def test_stages_receive_in_their_order_before_the_method_aggregates():
    first, second = Scaled(10.0), Scaled(0.5)
    own = Server(fedavg.FedAvg(ServerStep()), torch.zeros(1), [first, second])
    assert own.receive(1, [message(1.0), message(3.0, "b")]) == [message(5.0), message(15.0, "b")]
    assert own.model.tolist() == [10.0]
    own.receive(2, [message(1.0)])
    assert first.seen == [([0.0], [1.0, 3.0]), ([10.0], [1.0])]
    assert second.seen == [([0.0], [10.0, 30.0]), ([10.0], [10.0])]


def test_one_stage_is_enough_to_hide_who_took_part():
    method = fedavg.FedAvg(ServerStep())
    for hides in ([], [False, False], [True, False], [False, True]):
        own = Server(method, torch.zeros(1), [Scaled(1.0, each) for each in hides])
        assert own.hides_participation == any(hides)


def test_a_server_goes_on_from_its_state():
    own, later = server(Noted()), server(Noted())
    own.receive(1, [message(2.0)])
    later.restore(1, own.state())
    for each in (own, later):
        each.receive(2, [message(1.0)])
    assert torch.equal(own.model, later.model)
    assert own.state().keys() == later.state().keys()
    assert own.measure() == later.measure() == {"noted": 2}


def test_clients_keep_messages_since_the_older_of_two_checkpoints():
    own, settled = server(Noted()), []
    for round_ in (1, 2, 3):
        own.receive(round_, [message(1.0)])
        own.note_saved()
        settled.append(own.request(round_ + 1).settled)
    assert settled == [0, 1, 2]
    own.restore(2, own.state())
    assert own.request(3).settled == 2


@pytest.mark.parametrize("method", ["state", "request"])
def test_two_stages_cannot_use_one_name(method):
    """After a crash each would go on with the other's tensor."""

    class Named(Stage):
        def state(self):
            return {"clip": torch.ones(())} if method == "state" else {}

        def request(self):
            return {"clip": torch.ones(())} if method == "request" else {}

    own = Server(fedavg.FedAvg(ServerStep()), torch.zeros(1), [Named(), Named()])
    with pytest.raises(Unsupported, match="'clip'"):
        own.state() if method == "state" else own.request(1)
