"""The parts of a run, made of its setup and its plans: server, clients, and those who watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from udpfl.algorithms import OwnNoise
from udpfl.engine import Entropy, Keyed, PrivateStream
from udpfl.errors import LedgerError
from udpfl.federation._calibration import why_nothing_is_claimed
from udpfl.federation._learning_rate import learning_rate
from udpfl.federation._matching import match_notes
from udpfl.federation._own_noise import own_noise
from udpfl.federation._progress import ProgressWriter, needs_messages, restore_progress
from udpfl.federation._shuffle_notes import shuffle_notes
from udpfl.federation._statements import Statements
from udpfl.federation._stored_run import StoredRun
from udpfl.federation.client import InProcessClients, LocalClient, Receiver
from udpfl.federation.local_training import Trainer
from udpfl.federation.observers import Observer
from udpfl.federation.protection import Protection
from udpfl.federation.selection import ClientSelection
from udpfl.federation.server import Server
from udpfl.federation.setup import Setup
from udpfl.federation.stage_builder import StageParts, build_stages, sum_noise
from udpfl.federation.stages.shuffler import NOTE
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.federation.watchers import (
    CheckpointWriter,
    InterruptWatcher,
    MessageRecorder,
    MetricsAnnouncer,
    MetricsWriter,
    Watcher,
)
from udpfl.ledger.charges import TRUSTED
from udpfl.ledger.ledger import Ledger
from udpfl.models import BUILT_IN, RandomPrior
from udpfl.runs.targets import Target


@dataclass(frozen=True)
class Assembly:
    """Makes the parts of one run."""

    setup: Setup
    stored: StoredRun
    ledger: Ledger
    accounts: Sequence[int]
    unclaimed: str | None
    """Why no privacy is claimed although it was asked for."""
    protection: Protection | None

    @property
    def _key(self) -> str:
        """What stands for this run in the keys of random numbers."""
        return f"seed-{self.setup.config.seed}"

    @cached_property
    def _stream(self) -> PrivateStream:
        is_seeded = self.setup.config.privacy.randomness == "seeded"
        return Keyed(self.setup.config.seed) if is_seeded else Entropy()

    @property
    def _learning_rate(self) -> Callable[[int], float]:
        return partial(learning_rate, self.setup.config.training)

    @cached_property
    def selection(self) -> ClientSelection:
        """Who is asked when, without clients that the plan leaves out."""
        plans = self.stored.plans
        asked = [tuple(i for i in own if plans[i].rounds) for own in self.setup.schedule]
        return ClientSelection(asked, [plan.name for plan in plans])

    @cached_property
    def local_clients(self) -> list[LocalClient]:
        """Every client with its plan, its account and its records."""
        setup = self.setup
        return [
            LocalClient(plan, account, torch.from_numpy(part).to(setup.device), fingerprint)
            for plan, account, part, fingerprint in zip(
                self.stored.plans, self.accounts, setup.parts, setup.fingerprints, strict=True
            )
        ]

    def server(self) -> Server:
        """The server half."""
        setup, plans = self.setup, self.stored.plans
        noise = None if self.protection else self._own_noise
        trusted = None
        if setup.algorithm.trusts_server:
            store = self.stored.folder
            trusted = TrustedServer(store, self._key, self._stream, sum_noise(plans))
        parts = StageParts(
            self._key,
            self._stream,
            setup.public_loss,
            trusted,
            [own.name for own in plans if own.penalty == 0 and own.release],
            noise.down if noise else None,
        )
        stages, averaging = build_stages(setup.config, parts), setup.config.training.averaging
        return Server(setup.algorithm, setup.start, stages, averaging, self._learning_rate)

    @cached_property
    def _own_noise(self) -> OwnNoise | None:
        sizes = [plan.declared_size for plan in self.stored.plans]
        dimension = self.setup.model.layout.dimension
        return own_noise(self.setup.config, self.setup.algorithm, sizes, dimension)

    def clients(self, receiver: Receiver | None = None) -> InProcessClients:
        """The client half; with a `receiver` it stores no messages."""
        setup, training = self.setup, self.setup.config.training
        limits = setup.limits(
            lanes=max(len(chosen) for chosen in self.selection.schedule),
            threads=1 if self.protection else torch.get_num_threads(),
        )
        return InProcessClients(
            self.local_clients,
            self.stored.run,
            Trainer(
                self._key, setup.lane_model, *setup.train, setup.algorithm, self._stream, limits,
                self.protection,
            ),
            self.ledger,
            TRUSTED if setup.algorithm.trusts_server else NOTE if training.shuffle else "",
            self.stored.folder.note_charge,
            receiver,
        )  # fmt: skip

    @cached_property
    def statements(self) -> Statements:
        """What clients have spent, with what that takes for granted."""
        setup, noise = self.setup, self._own_noise
        keeps_state = bool(setup.algorithm.client_init(setup.start))
        return Statements(
            self.ledger,
            self.stored.run,
            self.local_clients,
            setup.config.privacy.accounting == "scalar",
            why_nothing_is_claimed(setup.config, self.unclaimed),
            setup.assumptions,
            (
                *((noise.claim,) if noise else ()),
                *match_notes(self.stored.plans),
                *shuffle_notes(setup.config, self.stored.plans, keeps_state),
                *_origin(setup),
            ),
        )

    def restore(self, server: Server) -> Mapping[str, Any] | None:
        """Put the server where the last round left it; write the first checkpoint of a new run.

        Returns the line of metrics of the last round, where that is not in a checkpoint yet.
        """
        folder, row = self.stored.folder, None
        checkpoint, reached = folder.read_checkpoint(), self.ledger.progress(self.stored.run)
        if reached is not None and (checkpoint is None or checkpoint.round < reached.round):
            row = restore_progress(server, reached)
            self._save(server)
        elif checkpoint is not None:
            server.restore(checkpoint.round, checkpoint.tensors)
        elif any(self.ledger.rounds_charged(self.stored.run, number) for number in self.accounts):
            raise LedgerError(
                f"the run {folder.path} cannot be resumed: no checkpoint can be read, and its "
                f"rounds are already charged"
            )
        else:
            self._save(server)
        if folder.metrics.exists():  # later rounds run again
            folder.rewrite_metrics(folder.read_metrics(server.round))
        return row

    def receiver(
        self, server: Server, metrics: MetricsWriter, observers: Sequence[Observer]
    ) -> Receiver | None:
        """What stores rounds without their messages; None where messages are needed."""
        needed = needs_messages(self.setup.config, self.setup.algorithm, observers)
        return None if needed or self.protection else ProgressWriter(server, metrics.facts)

    def _save(self, server: Server) -> None:
        self.stored.folder.write_checkpoint(server.round, server.state(), self.ledger.head())

    def watchers(
        self, server: Server, observers: Sequence[Observer], interrupted: threading.Event
    ) -> tuple[MetricsWriter, list[Watcher]]:
        """Those who watch, in their order. The server is where the last round left it."""
        setup, folder, training = self.setup, self.stored.folder, self.setup.config.training
        is_due = self._due(training.checkpoint_every)
        checkpoints = CheckpointWriter(server, self._save, is_due)
        metrics = MetricsWriter(
            server,
            folder,
            lambda: setup.evaluate(server.model),
            self.statements.spending,
            self._due(training.evaluate_every),
            self._learning_rate,
            Target.of(setup.config),
        )
        recorded = setup.config.record_updates
        return metrics, [
            MessageRecorder(server, setup.model, folder, recorded, observers),
            metrics,
            checkpoints,
            MetricsAnnouncer(metrics, observers),
            InterruptWatcher(interrupted, checkpoints, folder.path),
        ]

    def _due(self, every: int) -> Callable[[int], bool]:
        """Whether something that is done every so many rounds, and in the last, is due."""
        return lambda round_: round_ == len(self.selection) or round_ % every == 0


def _origin(setup: Setup) -> tuple[str, ...]:
    """What an encoder has seen; of a network that was handed over nobody knows."""
    network = setup.network
    is_named = BUILT_IN.get(setup.config.model.name) is RandomPrior
    return (network.origin,) if is_named and isinstance(network, RandomPrior) else ()
