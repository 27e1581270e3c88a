"""The parts of a run, made of its setup and its plans: server, clients, and those who watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from udpfl.algorithms import OwnNoise
from udpfl.engine import Entropy, Keyed, PrivateStream
from udpfl.engine.limits import choose_limits
from udpfl.federation.begun import Begun
from udpfl.federation.calibration import nothing_claimed
from udpfl.federation.client import InProcessClients, LocalClient
from udpfl.federation.learning_rate import learning_rate
from udpfl.federation.local_training import Trainer
from udpfl.federation.observers import Observer
from udpfl.federation.own_noise import own_noise
from udpfl.federation.protection import Protection
from udpfl.federation.selection import Selection
from udpfl.federation.server import Server
from udpfl.federation.setup import Setup
from udpfl.federation.shuffle_notes import shuffle_notes
from udpfl.federation.stages.shuffler import NOTE
from udpfl.federation.staging import build_stages
from udpfl.federation.statements import Statements
from udpfl.federation.watchers import (
    Checkpoints,
    Interrupts,
    Lines,
    Messages,
    Metrics,
    Watcher,
)
from udpfl.ledger.charges import TRUSTED
from udpfl.ledger.ledger import Ledger


@dataclass(frozen=True)
class Assembly:
    """Makes the parts of one run."""

    setup: Setup
    begun: Begun
    ledger: Ledger
    accounts: Sequence[int]
    unclaimed: str | None
    """Why no privacy is claimed although it was asked for."""
    protection: Protection | None

    @property
    def _key(self) -> str:
        """The run in the keys of its random numbers."""
        return f"seed-{self.setup.config.seed}"

    @cached_property
    def _stream(self) -> PrivateStream:
        is_seeded = self.setup.config.privacy.randomness == "seeded"
        return Keyed(self.setup.config.seed) if is_seeded else Entropy()

    @property
    def _learning_rate(self) -> Callable[[int], float]:
        return partial(learning_rate, self.setup.config.training)

    @cached_property
    def selection(self) -> Selection:
        """Who is asked when, without clients that the plan leaves out."""
        plans = self.begun.plans
        asked = [tuple(i for i in own if plans[i].rounds) for own in self.setup.schedule]
        return Selection(asked, [plan.name for plan in plans])

    @cached_property
    def local_clients(self) -> list[LocalClient]:
        """Every client with its plan, its account and its records."""
        setup = self.setup
        return [
            LocalClient(plan, account, torch.from_numpy(part).to(setup.device), fingerprint)
            for plan, account, part, fingerprint in zip(
                self.begun.plans, self.accounts, setup.parts, setup.fingerprints, strict=True
            )
        ]

    def server(self) -> Server:
        """The server half."""
        setup, plans = self.setup, self.begun.plans
        config, trusted = setup.config, setup.algorithm.trusts_server
        noise = None if self.protection else self._own_noise
        store = self.begun.folder if trusted else None
        stages = build_stages(config, plans, noise, store, self._key, self._stream)
        averaging = config.training.averaging
        return Server(setup.algorithm, setup.start, stages, averaging, self._learning_rate)

    @cached_property
    def _own_noise(self) -> OwnNoise | None:
        sizes = [plan.declared_size for plan in self.begun.plans]
        return own_noise(self.setup.config, self.setup.algorithm, sizes)

    def clients(self, bytes_per_sample: int) -> InProcessClients:
        """The client half."""
        setup, training = self.setup, self.setup.config.training
        limits = choose_limits(
            training.lanes,
            lanes=max(len(chosen) for chosen in self.selection.schedule),
            dimension=setup.model.layout.dimension,
            bytes_per_sample=bytes_per_sample,
            memory=training.memory << 20,
            chunk=training.chunk,
            device=setup.device,
            threads=1 if self.protection else torch.get_num_threads(),
        )
        return InProcessClients(
            self.local_clients,
            self.begun.run,
            Trainer(
                self._key, setup.model, *setup.train, setup.algorithm, self._stream, limits,
                self.protection,
            ),
            self.ledger,
            TRUSTED if setup.algorithm.trusts_server else NOTE if training.shuffle else "",
            self.begun.folder.note_charge,
        )  # fmt: skip

    @cached_property
    def statements(self) -> Statements:
        """What clients have spent, with what that takes for granted."""
        setup, noise = self.setup, self._own_noise
        keeps_state = bool(setup.algorithm.client_init(setup.start))
        return Statements(
            self.ledger,
            self.begun.run,
            self.local_clients,
            setup.config.privacy.accounting == "scalar",
            self.unclaimed or nothing_claimed(setup.config),
            (
                *((noise.claim,) if noise else ()),
                *setup.assumptions,
                *shuffle_notes(setup.config, self.begun.plans, keeps_state),
            ),
        )

    def watchers(
        self, server: Server, observers: Sequence[Observer], interrupted: threading.Event
    ) -> tuple[Metrics, list[Watcher]]:
        """Those who watch, in their order; the server is put where the last checkpoint left it."""
        setup, folder, training = self.setup, self.begun.folder, self.setup.config.training
        checkpoints = Checkpoints(server, folder, self.ledger, self._due(training.checkpoint_every))
        checkpoints.restore(self.begun.run, self.accounts)
        metrics = Metrics(
            server,
            folder,
            lambda: setup.evaluate(server.model),
            self.statements,
            self._due(training.evaluate_every),
            self._learning_rate,
        )
        recorded = setup.config.record_updates
        return metrics, [
            Messages(server, setup.model, folder, recorded, observers),
            metrics,
            checkpoints,
            Lines(metrics, observers),
            Interrupts(interrupted, checkpoints, folder.path),
        ]

    def _due(self, every: int) -> Callable[[int], bool]:
        """Whether something that is done every so many rounds, and in the last, is due."""
        return lambda round_: round_ == len(self.selection) or round_ % every == 0
