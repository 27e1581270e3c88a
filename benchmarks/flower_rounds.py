"""What a round over Flower costs, and which part of it is ours.

    python benchmarks/flower_rounds.py            # about 20 minutes on two cores
    python benchmarks/flower_rounds.py --fresh    # not going on with what was measured before

For 3 and 10 nodes on loopback (TLS, node keys) and two models: a round of the embedded default with
the gate in a service beside the SuperNode and, for 3 nodes, with the gate inside Flower's process;
the same round with empty work (nodes send back as many bytes and compute nothing), and the same
round in one process. Then the parts of one answer at a site: training, and policy, ledger and
serialisation, which are ours. All on one machine; medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import udpfl
from udpfl.config import load
from udpfl.deploy._replies import ReplyCheck
from udpfl.deploy.local import LocalFederation
from udpfl.deploy.starting import App, part_sizes, write_app
from udpfl.federation import Setup
from udpfl.federation.local_training import Trainer
from udpfl.federation.single_server import Inputs, ServerSetup
from udpfl.ledger.ledger import Ledger
from udpfl.site import Gate, Policy, SiteRequest, settings_to_propose

sys.path.append(str(Path(__file__).parent))

from figures import FLOWER_WAYS
from machine import RESULTS, described, write

OUT = RESULTS / "flower-cpu.json"
FEW = 3
"""Nodes up to which the gate is tried inside Flower's process: ten that load torch for every
message keep two cores busy for most of a minute a round."""
ROUNDS = 6
"""The first one loads and plans: it is left out of the medians."""
EMPTY_SERVER = """
import json, threading, time
from pathlib import Path
from flwr.serverapp import ServerApp
from udpfl.deploy._flower import FlowerTransport

app = ServerApp()

@app.main()
def main(grid, context):
    said = dict(pair.split("=") for pair in str(context.run_config["set"]).split())
    transport, nodes = FlowerTransport(grid), []
    while len(nodes) < int(said["nodes"]):
        nodes = transport.nodes()
        time.sleep(0.5)
    rounds = []
    for number in range(int(said["rounds"])):
        body = number.to_bytes(8, "little") * (int(said["bytes"]) // 8)
        began = time.monotonic()
        threads = [
            threading.Thread(target=transport.ask,
                             args=(node.id, {"ask": "train"}, body, 300.0, threading.Event()))
            for node in nodes
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        rounds.append(time.monotonic() - began)
    Path(str(context.run_config["out"])).write_text(json.dumps(rounds))
"""
EMPTY_CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp
from udpfl.deploy._flower import from_records, to_records

app = ClientApp()

@app.train()
def echo(message, context):
    return Message(to_records(*from_records(message.content)), reply_to=message)
"""


def make_app(folder: Path, nodes: int, model: str) -> App:
    """The app of the demo, with another model."""
    app = write_app(folder, sizes=part_sizes(4000, nodes), rounds=ROUNDS)
    text = app.federation.read_text().replace('"cnn-small"', f'"{model}"')
    app.federation.write_text(text)
    for site in app.sites:
        own = app.policy(site).read_text().replace('"cnn-small"', f'"{model}"')
        app.policy(site).write_text(own)
    return app


def over_flower(folder: Path, nodes: int, model: str, has_services: bool) -> list[float]:
    """Seconds of every round of a deployed run."""
    app = make_app(folder / "app", nodes, model)
    with LocalFederation(app, has_services=has_services) as own:
        own.start()
        own.submit(out=str(folder / "run")).wait(1200)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"] for line in lines]


def empty_work(folder: Path, nodes: int, size: int) -> list[float]:
    """Seconds of rounds in which nodes send back what they got."""
    app = make_app(folder / "app", nodes, "cnn-small")
    (app.folder / app.package / "server_app.py").write_text(EMPTY_SERVER)
    (app.folder / app.package / "client_app.py").write_text(EMPTY_CLIENT)
    out = folder / "rounds.json"
    with LocalFederation(app, has_services=False) as own:
        own.start()
        said = f"nodes={nodes} rounds={ROUNDS} bytes={4 * size}"
        own.submit(out=str(out), set=said).wait(1200)
    found: list[float] = json.loads(out.read_text())
    return found


def in_one_process(folder: Path, nodes: int, model: str) -> list[float]:
    """Seconds of every round of `udpfl run`."""
    run = udpfl.run(
        {"data": {"clients": nodes}, "model": {"name": model}, "training": {"rounds": ROUNDS}},
        out=str(folder / "one"),
    )
    return [row["seconds"] for row in run.metrics]


def parts_of_an_answer(folder: Path, model: str, rounds: int = 12) -> dict[str, float]:
    """Median seconds of one site and its server: training, and all that is ours."""
    app = make_app(folder / "parts", 3, model)
    text = app.policy("client-0").read_text().replace(f"in_all = {ROUNDS}", f"in_all = {rounds}")
    app.policy("client-0").write_text(text)
    gate = Gate(Policy.read(app.policy("client-0")))
    config = load(
        {"data": {"clients": 3}, "model": {"name": model}, "training": {"rounds": rounds}}
    )
    setup, settings = Setup.of(config), settings_to_propose(config)
    inputs = Inputs((1, 28, 28), 10, "classification")
    server = ServerSetup.for_server(config, ["client-0", "b", "c"], inputs, has_records=False)
    check = ReplyCheck.of(server, {"client-0": 1334, "b": 1, "c": 1})
    spent: dict[str, list[float]] = {"training": [], "ledger": [], "site": [], "server": []}
    timed(Trainer, "train", spent["training"])
    timed(Ledger, "commit", spent["ledger"])
    for round_ in range(1, rounds + 1):
        began = time.perf_counter()
        sent = SiteRequest("run", settings, round_, {"model": setup.start}, 2.0, 3)
        body, address = sent.body(), sent.address()
        made = time.perf_counter()
        about, message = gate.handle({"ask": "train", "address": address}, body)
        answered = time.perf_counter()
        assert not about["refused"], about
        check("client-0", round_, message)
        spent["site"].append(answered - made)
        spent["server"].append(made - began + time.perf_counter() - answered)
    middle = {name: statistics.median(values[2:]) for name, values in spent.items()}
    ours = middle["site"] - middle["training"] + middle["server"]
    return {**middle, "ours": ours, "bytes": float(len(message))}


def timed(kind: type, name: str, into: list[float]) -> None:
    """Note how long every call of a method takes."""
    original = getattr(kind, name)

    def measured(self: Any, *values: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(self, *values, **named)
        finally:
            into.append(time.perf_counter() - began)

    setattr(kind, name, measured)


def seconds_to_import(code: str) -> float:
    """How long a fresh Python takes for it: the median of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measured(model: str, nodes: int) -> dict[str, Any]:
    """Median seconds of a round, the four ways."""
    network = Setup.of(load({"model": {"name": model}})).network
    size = sum(own.numel() for own in network.parameters())
    row: dict[str, Any] = {"model": model, "parameters": size, "nodes": nodes}
    with tempfile.TemporaryDirectory(prefix="flower-") as name:
        places = {key: Path(name) / str(number) for number, key in enumerate(FLOWER_WAYS)}
        for place in places.values():
            place.mkdir()
        found = {
            "service": over_flower(places["service"], nodes, model, True),
            "empty work": empty_work(places["empty work"], nodes, size),
            "one process": in_one_process(places["one process"], nodes, model),
        }
        if nodes <= FEW:
            inside = FLOWER_WAYS[1]
            found[inside] = over_flower(places[inside], nodes, model, False)
    row |= {key: statistics.median(seconds[1:]) for key, seconds in found.items()}
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[3, 10])
    parser.add_argument("--models", nargs="*", default=["cnn-small", "cnn"])
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": described(1), "rounds": []}
    if OUT.exists() and not given.fresh:
        report["rounds"] = json.loads(OUT.read_text())["rounds"]
    done = {(row["model"], row["nodes"]) for row in report["rounds"]}
    for model, nodes in itertools.product(given.models, given.nodes):
        if (model, nodes) not in done:
            report["rounds"].append(measured(model, nodes))
            write(OUT, report)
    parts = {}
    for model in given.models:
        with tempfile.TemporaryDirectory(prefix="flower-") as name:
            parts[model] = parts_of_an_answer(Path(name), model)
            print(model, {key: round(value, 4) for key, value in parts[model].items()}, flush=True)
    imports = {
        "Flower's own process, empty": seconds_to_import("import flwr.clientapp"),
        "and passing on": seconds_to_import("import flwr.clientapp, udpfl.deploy.client_app"),
        "and the gate": seconds_to_import("import flwr.clientapp, udpfl.site.gate"),
    }
    print({key: round(value, 2) for key, value in imports.items()})
    write(OUT, {**report, "answer": parts, "imports": imports})


if __name__ == "__main__":
    main()
