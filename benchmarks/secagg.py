"""Can Flower's SecAgg+ carry vectors of integers through a real deployment?

Starts a SuperLink and N SuperNodes on loopback and runs two rounds: a plain one and one
under SecAgg+. Every client sends a known vector of integers. Prints the time and payload
of each round and whether the server's sum is the true one in every entry. Flower loads
this same file as its app (client_app, server_app).

    python benchmarks/secagg.py --nodes 3 --size 26010 --timeout 300
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.common.serde import recorddict_to_proto
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.default_workflows import default_fit_workflow

# SecAgg+ is exact with these settings: quantization_range = 2 * clipping_range makes the
# quantiser's scale 1, num_examples = max_weight makes the weight 1. An integer x becomes
# x + CLIP; the stochastic rounding finds nothing to round. x + CLIP has to fit int32, so
# |x| < 2**30. The modulus has to exceed nodes * 2 * CLIP (its default, 2**32, does not).
CLIP = 2**30
MODULUS = 2**48
WEIGHT = 1


def known_vector(partition: int, size: int) -> np.ndarray:
    """Return the integers that client `partition` sends; both ends of the range occur."""
    vector = np.random.default_rng(partition).integers(-CLIP + 1, CLIP, size)
    vector[:2] = CLIP - 1, -CLIP + 1
    return vector


class IntegerClient(NumPyClient):
    """A client that sends its known vector instead of training."""

    def __init__(self, context: Context) -> None:
        self.known = int(context.node_config["partition-id"]), int(context.run_config["size"])

    def fit(self, parameters: Any, config: Any) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Return the known vector with the weight that SecAgg+ turns into 1."""
        return [known_vector(*self.known)], WEIGHT, {}


def mask_if_asked(msg: Message, context: Context, call_next: Callable) -> Message:
    """Apply SecAgg+, except in the plain round (in earnest: always)."""
    if RECORD_KEY_CONFIGS in msg.content.config_records:
        return secaggplus_mod(msg, context, call_next)
    return call_next(msg, context)


client_app = ClientApp(lambda context: IntegerClient(context).to_client(), mods=[mask_if_asked])
server_app = ServerApp()


class Sum(FedAvg):
    """Adds the results up. After SecAgg+ each of the n results is the mean: same sum."""

    total: np.ndarray | None = None

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Keep the sum of the results, rounded to integers."""
        vectors = [parameters_to_ndarrays(result.parameters)[0] for _, result in results]
        self.total = np.rint(np.sum(vectors, axis=0)).astype(np.int64)
        return None, {}


def megabytes(messages: list[Message]) -> float:
    """Return the size of the messages' contents as protobuf (an error reply has none)."""
    return sum(recorddict_to_proto(m.content).ByteSize() for m in messages if m.has_content()) / 1e6


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run a plain round and one under SecAgg+; write what came out to a file."""
    nodes, size = int(context.run_config["nodes"]), int(context.run_config["size"])
    truth = np.sum([known_vector(i, size) for i in range(nodes)], axis=0)
    secure = SecAggPlusWorkflow(
        num_shares=1.0,  # as a fraction of the nodes: every node gets a share ...
        reconstruction_threshold=0.67,  # ... and two thirds of the shares open a mask
        clipping_range=float(CLIP), quantization_range=2 * CLIP, modulus_range=MODULUS,
        max_weight=WEIGHT, timeout=float(context.run_config["timeout"]),
    )  # fmt: skip
    rows: list[dict[str, Any]] = []

    def measured(name: str, fit: Callable, context: LegacyContext) -> None:
        rows.append(row := {"round": name, "down": 0.0, "up": 0.0})

        def send_and_receive(messages: Iterable[Message], **options: Any) -> list[Message]:
            row["down"] += megabytes(sent := list(messages))
            row["up"] += megabytes(received := list(grid.send_and_receive(sent, **options)))
            return received

        began = time.monotonic()
        fit(SimpleNamespace(send_and_receive=send_and_receive), context)  # all they call
        row["seconds"], total = time.monotonic() - began, context.strategy.total
        row["wrong"] = size if total is None else int(np.sum(total != truth))

    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.5)
    model = ndarrays_to_parameters([np.zeros(size, dtype=np.float32)])
    for name, fit in (("plain", default_fit_workflow), ("SecAgg+", secure)):
        strategy = Sum(min_fit_clients=nodes, min_available_clients=nodes, fraction_evaluate=0.0,
                       initial_parameters=model)  # fmt: skip
        legacy = LegacyContext(context, ServerConfig(num_rounds=1), strategy)
        DefaultWorkflow(lambda _, ctx, n=name, f=fit: measured(n, f, ctx))(grid, legacy)
    Path(str(context.run_config["result"])).write_text(json.dumps(rows))


PYPROJECT = """
project = {name = "secagg-probe", version = "1.0.0", description = "-", license = "Apache-2.0"}
[tool.flwr.app]
publisher = "probe"
components = {serverapp = "secagg_probe:server_app", clientapp = "secagg_probe:client_app"}
config = {nodes = 0, size = 0, timeout = 0.0, result = ""}
"""
HOME = 'superlink = {default = "loop", loop = {address = "%s", insecure = true}}'


def run_federation(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Start SuperLink and SuperNodes, run the app, stop everything; return the rows."""
    app, result, link = folder / "app", folder / "result.json", f"127.0.0.1:{args.port}"
    app.mkdir()
    shutil.copy(__file__, app / "secagg_probe.py")
    (app / "pyproject.toml").write_text(PYPROJECT)
    (folder / "config.toml").write_text(HOME % link)
    tools = Path(sys.executable).parent  # the SuperLink looks here for its helpers, too
    env = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    env |= {"FLWR_HOME": str(folder), "PATH": f"{tools}:{os.environ['PATH']}"}
    started: list[subprocess.Popen] = []

    def start(log: str, command: str, *last: str) -> subprocess.Popen:
        with open(folder / f"{log}.log", "w") as out:
            words = [*f"{tools}/{command}".split(), *last]
            started.append(subprocess.Popen(words, env=env, stdout=out, stderr=out,
                                            start_new_session=True))  # fmt: skip
        return started[-1]

    try:
        start("superlink", f"flower-superlink --insecure --host 127.0.0.1 --port {args.port}"
              " --disable-runtime-dependency-installation")  # fmt: skip
        time.sleep(5)
        for i in range(args.nodes):
            start(f"node{i}", f"flower-supernode --insecure --superlink {link} --host 127.0.0.1"
                  f" --port {args.port + 10 + i} --node-config", f"partition-id={i}")  # fmt: skip
        config = f'nodes={args.nodes} size={args.size} timeout={args.timeout} result="{result}"'
        start("run", f"flwr run {app} loop --stream -c", config).wait(args.timeout)
    except subprocess.TimeoutExpired:
        print(f"not finished after {args.timeout} s")
    finally:
        for process in reversed(started):  # each of them leads a process group of its own
            for sig, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 1)):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, sig)
                    process.wait(patience)
    if not result.exists():
        sys.exit((folder / "run.log").read_text()[-3000:])
    return json.loads(result.read_text())


def main() -> int:
    """Run the federation and print the table; exit status 0 if both sums were exact."""
    parser = argparse.ArgumentParser(description="Integers through Flower's SecAgg+")
    parser.add_argument("--nodes", type=int, default=3, help="SuperNodes (3 or more)")
    parser.add_argument("--size", type=int, default=26_010, help="integers in a vector")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the run")
    parser.add_argument("--port", type=int, default=9900, help="SuperLink; nodes from +10 on")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="secagg-") as folder:
        rows = run_federation(Path(folder), args)
    print(f"{args.nodes} nodes, {args.size} integers each, |x| < {CLIP}")
    print("round     seconds   MB down     MB up  sum")
    for row in rows:
        verdict = f"{row['wrong']} entries wrong" if row["wrong"] else "exact"
        print("{round:<8} {seconds:>8.1f} {down:>9.3f} {up:>9.3f} ".format(**row), verdict)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
