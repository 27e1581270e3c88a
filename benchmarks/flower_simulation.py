"""The training benchmark's workload in Flower's simulation, clients with Opacus, two workers.

python benchmarks/flower_simulation.py --model cnn-small --rounds 5 --answer OUT.json

`training.py` runs it in a process of its own. Start-up is everything before the first round is
asked for; the first round, in which the workers import their packages, counts to the start-up too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
WORKERS = 2
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # The workers unpickle functions of these modules.
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
}
os.environ.setdefault("FLWR_HOME", tempfile.mkdtemp(prefix="flower-"))

import torch  # noqa: E402
from contenders import OpacusSite, kept_data  # noqa: E402
from flwr.app import (  # noqa: E402
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from machine import write  # noqa: E402
from workload import TOY, Workload  # noqa: E402


class Timed(FedAvg):
    """FedAvg that notes when each round begins, and insists on every answer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.began: list[float] = []
        self.failure: str | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        self.began.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [reply for reply in replies if reply.has_error()]
        if failed or len(replies) != self.min_train_nodes:
            # Flower goes on without them, and a round in which nobody trains is quick.
            self.failure = f"round {server_round}: {failed[0].error if failed else replies}"
        return super().aggregate_train(server_round, replies)


def client_app(workload: Workload) -> ClientApp:
    """A client as one writes it: a fresh private model for every message."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore")
        part = workload.part(int(context.node_config["partition-id"]))
        x, y = kept_data(workload)
        site = OpacusSite("hooks", workload, x[part], y[part])
        site.own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        site.train()
        answer = {
            "arrays": ArrayRecord(site.own.state_dict()),
            "metrics": MetricRecord({"num-examples": workload.records}),
        }
        return Message(content=RecordDict(answer), reply_to=message)

    return app


def simulate(workload: Workload, rounds: int) -> dict[str, Any]:
    """Seconds per round, and from the start of this process to the end of the first round."""
    strategy = Timed(
        fraction_train=workload.picked / workload.clients,
        fraction_evaluate=0.0,
        min_train_nodes=workload.picked,
        min_available_nodes=workload.clients,
    )
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(workload.network().state_dict()),
            num_rounds=rounds + 1,
        )
        strategy.began.append(time.perf_counter())

    run_simulation(
        server_app=server,
        client_app=client_app(workload),
        num_supernodes=workload.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": WORKERS, "include_dashboard": False},
        },
    )
    began = strategy.began
    if strategy.failure or len(began) != rounds + 2:
        raise SystemExit(strategy.failure or f"only {len(began) - 1} rounds were run")
    return {
        "start_up": began[1] - BEGAN,
        "seconds": [after - before for before, after in pairwise(began[1:])],
        "workers": WORKERS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="cnn-small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a toy, to see that it works")
    parser.add_argument("--answer", type=Path, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    workload = replace(TOY if options.quick else Workload(), model=options.model)
    write(options.answer, simulate(workload, options.rounds))


if __name__ == "__main__":
    main()
