"""The course of a run, top to bottom: from its settings to a trained model and a ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Sequence
from typing import Any

from udpfl.engine import Loss
from udpfl.federation._assembly import Assembly
from udpfl.federation._common import Common
from udpfl.federation._ending import Ending
from udpfl.federation._interrupts import Interrupts, patient_interrupt
from udpfl.federation._opening import Asked, begin_folder, check, prepare
from udpfl.federation._questions import Question
from udpfl.federation._stored_run import StoredRun
from udpfl.federation.admission import admit, require_charges
from udpfl.federation.loop import rounds
from udpfl.federation.observers import Observer, announce
from udpfl.federation.protection import Protection
from udpfl.federation.request import Answers
from udpfl.federation.result import Run
from udpfl.federation.setup import Setup
from udpfl.ledger.ledger import Ledger

log = logging.getLogger(__name__)


def course(
    asked: Asked,
    test: Any = None,
    loss: Loss | None = None,
    observers: Sequence[Observer] = (),
    protection: Protection | None = None,
    interrupts: Interrupts = patient_interrupt,
    common: Common | None = None,
) -> Generator[Question, Answers, Run]:
    """A run from its beginning to its end, for whoever answers the questions of its rounds."""
    began = time.perf_counter()
    unclaimed = "clipping and noise were replaced" if protection else None
    prepare(asked, unclaimed)
    setup = Setup.of(
        asked.config, data=asked.data, test=test, model=asked.model, loss=loss,
        among=asked.among, common=common,
    )  # fmt: skip
    check(setup)
    folder = asked.folder or begin_folder(setup, setup.plans_within_budgets(), unclaimed)
    stored = StoredRun.read(folder, setup.model.layout.dimension, setup.fingerprints)
    with folder.locked():
        require_charges(stored, setup.holding)
        with Ledger(stored.ledger) as ledger:
            accounts = admit(setup.config, ledger, stored, setup.holding, not unclaimed)
            parts = Assembly(setup, stored, ledger, accounts, unclaimed, protection)
            announce(observers, "on_start", setup.config, folder.path)
            result = (yield from _train(parts, observers, interrupts)).write(began)
            announce(observers, "on_end", result)
    return result


def _train(
    parts: Assembly, observers: Sequence[Observer], interrupts: Interrupts
) -> Generator[Question, Answers, Ending]:
    """All rounds that are left, and what the run has come to."""
    seconds_before = parts.stored.folder.drop_summary()
    server = parts.server()
    last = parts.restore(server)
    with interrupts() as interrupted:
        metrics, watchers = parts.watchers(server, observers, interrupted)
        clients = parts.clients(parts.receiver(server, metrics, observers))
        if last is not None:
            metrics.note_missing(last)
        if server.round == len(parts.selection):
            log.warning("all rounds are already trained: only the results are written again")
        stopped = yield from rounds(server, clients, parts.selection, watchers)
    return Ending(
        setup=parts.setup,
        stored=parts.stored,
        ledger=parts.ledger,
        statements=parts.statements,
        rows=metrics.rows,
        final=server.model,
        stopped=stopped,
        seconds_before=seconds_before,
    )
