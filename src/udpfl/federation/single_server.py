"""The server by itself: clients are elsewhere, and it knows what they say.

It has the model, the method, the stages and test records of its own, if any. It has no client's
records, no account and no budget: what clients have spent is what they report.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from udpfl._version import __version__
from udpfl.accounting import PrivacyStatement
from udpfl.accounting.events import Release, leaves
from udpfl.accounting.serial import event_from_json
from udpfl.accounting.statement import largest, weakest_kind
from udpfl.algorithms import ClientMessage, Tensors
from udpfl.config import Config, dump, per_client
from udpfl.data import DataSet
from udpfl.data.records import Records, Task
from udpfl.engine import Entropy, Keyed
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation._calibration import why_nothing_is_claimed
from udpfl.federation._client_data import divide_records, require_public
from udpfl.federation._combinations import check_combination, check_target
from udpfl.federation._learning_rate import learning_rate
from udpfl.federation._own_noise import own_noise
from udpfl.federation._questions import Clients
from udpfl.federation._statements import spread
from udpfl.federation.builders import (
    build_algorithm,
    build_network,
    choose_device,
    choose_loss,
    copy_with_parameters,
    load_dataset,
)
from udpfl.federation.evaluation import final_evaluation
from udpfl.federation.loop import train
from udpfl.federation.observers import Observer
from udpfl.federation.selection import ClientSelection
from udpfl.federation.server import Server
from udpfl.federation.setup import Setup
from udpfl.federation.stage_builder import StageParts, build_stages, own_stages
from udpfl.federation.stages.trusted_server import SumNoise, TrustedServer
from udpfl.federation.watchers import (
    CheckpointWriter,
    MessageRecorder,
    MetricsAnnouncer,
    MetricsWriter,
)
from udpfl.runs.folder import RunFolder
from udpfl.runs.preprocessing import Preprocessing
from udpfl.runs.schema import Claim, FinalEvaluation, Identity, Stamp, Summary
from udpfl.runs.targets import Target

REPORTED = "reported by the clients, whose ledgers are not here"
"""What is to be known about a statement of a server that has no ledger."""


class RemoteClients(Clients, Protocol):
    """Clients on other machines, and what they say of themselves."""

    def statements(self) -> Mapping[str, PrivacyStatement]:
        """What each has spent, by its own words."""

    def heads(self) -> Mapping[str, tuple[int, str]]:
        """The last charge in the ledger of each, by its own words."""


@dataclass(frozen=True)
class Inputs:
    """What the records of clients look like; public."""

    shape: tuple[int, ...]
    """Of one input."""
    outputs: int
    """Numbers that a model answers with."""
    task: Task
    type: str = "float32"
    """Or "int64" for token ids."""


@dataclass(frozen=True)
class ServerSetup(Setup):
    """A run as the server sees it."""

    clients: Sequence[str]
    """Their names, in the order of the schedule."""
    has_records: bool
    """Whether the server has test records of its own."""

    @property
    def names(self) -> list[str]:
        """What the clients are called."""
        return list(self.clients)

    @classmethod
    def for_server(
        cls,
        config: Config,
        names: Sequence[str],
        inputs: Inputs,
        model: nn.Module | None = None,
        *,
        has_records: bool,
    ) -> ServerSetup:
        """The setup of a server for these clients.

        With `has_records` the data of the configuration is the server's own: its test records are
        what models are evaluated on, and its public records are what a method may learn from.

        Raises:
            InvalidInput: A setting is wrong, or the server's records are not like the clients'.
        """
        algorithm = build_algorithm(config)
        check_combination(config, algorithm)
        data = load_dataset(config, None, None) if has_records else _blank(inputs)
        _require_alike(data, inputs)
        check_target(config, data.task)
        own_stages(config)
        public = np.arange(0)
        if has_records and config.data.public:
            public = divide_records(config, data)[1]
        require_public(algorithm, public)
        setup = cls(
            config=config,
            device=choose_device(config.device),
            data=data,
            given=None,
            parts=[],
            public=public,
            algorithm=algorithm,
            network=build_network(config, model, inputs.shape, inputs.outputs),
            loss=choose_loss(inputs.task),
            clients=names,
            has_records=has_records,
        )
        setup.show_public_records()
        return setup


def _blank(inputs: Inputs) -> DataSet:
    """One record of zeros, where the server has none: it has the right shape, and is not used."""
    is_labelled = inputs.task == "classification"
    targets = np.zeros(1, np.int64) if is_labelled else np.zeros((1, inputs.outputs), np.float32)
    record = Records(np.zeros((1, *inputs.shape), inputs.type), targets)
    return DataSet(
        "none", inputs.task, record, record, classes=inputs.outputs if is_labelled else None
    )


def _require_alike(data: DataSet, inputs: Inputs) -> None:
    found = (data.input_shape, data.outputs, data.task)
    if found != (inputs.shape, inputs.outputs, inputs.task):
        raise InvalidInput(
            "data",
            f"the server's records have the shape {found[0]} and {found[1]} outputs ({found[2]}), "
            f"those of the clients {inputs.shape} and {inputs.outputs} ({inputs.task})",
        )


def begin_server_folder(setup: ServerSetup, folder: RunFolder, run: str | None = None) -> None:
    """Write what a server's run begins with."""
    config = setup.config
    reason = why_nothing_is_claimed(config)
    claim = Claim("none", reason) if reason else Claim("guarantee", REPORTED)
    folder.write_config(dump(config))
    folder.write_preprocessing(Preprocessing.of(setup.data))
    folder.write_identity(
        Identity(
            id=run or secrets.token_hex(8),
            privacy=claim,
            server_adds_noise=setup.algorithm.trusts_server,
            task=setup.data.task,
            udpfl=__version__,
            torch=torch.__version__,
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
            sites=tuple(setup.names),
        )
    )


@dataclass(frozen=True)
class ServedRun:
    """What a server's run has come to."""

    folder: RunFolder
    model: nn.Module
    """The architecture with the trained weights."""
    clients: Mapping[str, PrivacyStatement]
    """What each client has spent, by its own words."""
    metrics: Sequence[Mapping[str, Any]]
    """One line for every round."""
    seconds: float
    stopped: str | None = None
    """Why it ended before its last round; None where it did not."""

    @property
    def accuracy(self) -> float | None:
        """Of the final model on the server's test records, if it has any."""
        found = (row["accuracy"] for row in reversed(self.metrics) if row.get("accuracy"))
        return next(found, None)


def serve(
    setup: ServerSetup,
    folder: RunFolder,
    clients: RemoteClients,
    observers: Sequence[Observer] = (),
) -> ServedRun:
    """All rounds that are left, from the last checkpoint in the folder on.

    Args:
        setup: The run as the server sees it.
        folder: Of the run; `begin_server_folder` has begun it.
        clients: Answer each request.
        observers: See every message and every round.

    Returns:
        The model, what clients have reported, and the metrics.
    """
    began, config = time.perf_counter(), setup.config
    server = _server(setup, folder)

    def save(server: Server) -> None:
        folder.write_checkpoint(server.round, server.state(), sites=clients.heads())

    checkpoint = folder.read_checkpoint()
    if checkpoint is None:
        save(server)
    else:
        server.restore(checkpoint.round, checkpoint.tensors)
    if folder.metrics.exists():  # rounds after the checkpoint run again
        folder.rewrite_metrics(folder.read_metrics(server.round))
    seconds_before = folder.drop_summary()
    metrics = MetricsWriter(
        server,
        folder,
        (lambda: setup.evaluate(server.model)) if setup.has_records else None,
        lambda: _spending(config, clients),
        _due(config, config.training.evaluate_every),
        partial(learning_rate, config.training),
        Target.of(config),
    )
    watchers = [
        MessageRecorder(server, setup.model, folder, config.record_updates, observers),
        metrics,
        CheckpointWriter(server, save, _due(config, config.training.checkpoint_every)),
        MetricsAnnouncer(metrics, observers),
    ]
    selection = ClientSelection(setup.schedule, setup.names)
    stopped = train(server, clients, selection, watchers)
    served = ServedRun(
        folder,
        copy_with_parameters(setup.network, setup.model, server.model),
        _reported(config, clients),
        metrics.rows,
        max(time.perf_counter() - began, seconds_before, sum(r["seconds"] for r in metrics.rows)),
        stopped,
    )
    _write_end(setup, served, server)
    return served


def _due(config: Config, every: int) -> Callable[[int], bool]:
    return lambda round_: round_ == config.training.rounds or round_ % every == 0


def _server(setup: ServerSetup, folder: RunFolder) -> Server:
    """The server half, with the stages of the run."""
    config, algorithm = setup.config, setup.algorithm
    is_seeded = config.privacy.randomness == "seeded"
    stream = Keyed(config.seed) if is_seeded else Entropy()
    key, clients = f"seed-{config.seed}", config.data.clients
    sizes = config.data.declared_sizes
    known = sizes if isinstance(sizes, list) else [1]
    noise = own_noise(config, algorithm, known, setup.model.layout.dimension)
    budgets = per_client(config.privacy.epsilon, clients)
    towards = [n for n, own in zip(setup.names, budgets, strict=True) if own == max(budgets)]
    trusted = None
    if algorithm.trusts_server:
        trusted = ReportedNoise(
            folder, key, stream, SumNoise(None, clients, algorithm.participation)
        )
    down = noise.down if noise else None
    parts = StageParts(key, stream, setup.public_loss, trusted, towards, down)
    rate = partial(learning_rate, config.training)
    stages = build_stages(config, parts)
    return Server(algorithm, setup.start, stages, config.training.averaging, rate)


@dataclass(frozen=True)
class ReportedNoise(TrustedServer):
    """A trusted server that adds the noise which clients were charged for.

    Guarantee: the noise is that of the events in the messages, and the same in all of them.
    """

    def receive(
        self, round_: int, server: Tensors, messages: Sequence[ClientMessage]
    ) -> list[ClientMessage]:
        """One message in the place of all: the noisy mean."""
        noise = replace(self.noise, release=charged_release(messages))
        own = TrustedServer(self.store, self.key, self.stream, noise)
        return own.receive(round_, server, messages)


def charged_release(messages: Sequence[ClientMessage]) -> Release:
    """The release that clients of a trusted server were charged for, all of them the same."""
    found = set()
    for message in messages:
        for text in message.events:
            for leaf in leaves(event_from_json(text)):
                inner: Any = leaf
                while not isinstance(inner, Release) and hasattr(inner, "event"):
                    inner = inner.event
                found.add(inner)
    if len(found) != 1 or not isinstance(release := found.pop(), Release):
        raise Unsupported(
            "a trusted server adds one noise to the sum of all updates, but clients were charged "
            "for different noise: their policies have to plan the same"
        )
    return release


def _reported(config: Config, clients: RemoteClients) -> dict[str, PrivacyStatement]:
    if reason := why_nothing_is_claimed(config):
        return {name: PrivacyStatement.none(reason) for name in clients.statements()}
    return {name: own.adding(notes=[REPORTED]) for name, own in clients.statements().items()}


def _spending(config: Config, clients: RemoteClients) -> dict[str, Any]:
    """What goes into a round's line of metrics."""
    statements = list(_reported(config, clients).values())
    kind = weakest_kind(statements) if statements else "none"
    if kind == "none":
        return {"privacy": "none", "epsilon": None}
    row: dict[str, Any] = {"privacy": kind, "epsilon": spread([s.epsilon for s in statements])}
    if kind == "nominal":
        row["guaranteed_epsilon"] = spread([s.vector_epsilon for s in statements])
    return row


def _write_end(setup: ServerSetup, served: ServedRun, server: Server) -> None:
    """The model, its evaluation, and what clients have reported."""
    folder, statements = served.folder, served.clients
    none = PrivacyStatement.none("no client has answered")
    privacy = largest(statements.values()) if statements else none
    if served.metrics:  # else nobody has trained, and there is no model to hand on
        folder.write_model(dict(served.model.state_dict()), Stamp.of(privacy, (0, "")))
    if setup.has_records:
        found = final_evaluation(setup.model, server.model, *setup.test, setup.data)
        folder.write_evaluation(FinalEvaluation.from_dict(found))
    figures = {
        name: value
        for name in ("accuracy", "loss", "mae", "mse", "rmse")
        for value in [next((r[name] for r in reversed(served.metrics) if r.get(name)), None)]
    }
    outcome = {
        **figures,
        "seconds": round(served.seconds, 3),
        "stopped": served.stopped,
        "device": str(setup.device),
        "parameters": setup.model.layout.dimension,
        "server_adds_noise": setup.algorithm.trusts_server,
        "notes": [REPORTED],
    }
    folder.write_summary(
        Summary(outcome, privacy, str(privacy), str(folder.path), dict(statements))
    )
