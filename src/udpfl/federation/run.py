"""`run`: from a configuration to a trained model and a ledger, top to bottom."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from udpfl.config import Config
from udpfl.engine import Loss
from udpfl.federation._assembly import Assembly
from udpfl.federation._ending import Ending
from udpfl.federation._interrupts import patient_interrupt
from udpfl.federation._opening import begin_folder, check, prepare, read_arguments
from udpfl.federation._stored_run import StoredRun
from udpfl.federation.admission import admit, require_charges
from udpfl.federation.loop import train
from udpfl.federation.observers import Observer, announce
from udpfl.federation.protection import Protection
from udpfl.federation.result import Run
from udpfl.federation.setup import Setup
from udpfl.ledger.ledger import Ledger

log = logging.getLogger(__name__)


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | Mapping[str, Any] | str | None = None,
    data: Any = None,
    test: Any = None,
    loss: Loss | None = None,
    resume: str | Path | None = None,
    observers: Sequence[Observer] = (),
    protection: Protection | None = None,
    **sections: Any,
) -> Run:
    """Train one model over many clients, each within its own privacy budget.

    Args:
        config: A file, a mapping or a `Config`; the embedded default if left out.
        model: Any `nn.Module`, the name of a model, or a section of settings.
        data: Anything that `udpfl.data.as_dataset` takes, or a section of settings.
        test: The test records, in the same forms; a split of the data if left out.
        loss: Gives one number per sample.
        resume: A run folder to go on with; code that it names has to be trusted (`udpfl.plugins`).
        observers: See every released message and every round's model.
        protection: Replaces clipping and noise, for audits: nothing is claimed for such a run.
        **sections: Settings on top of `config`, such as `privacy={"epsilon": 2}` or `seed=1`.

    Returns:
        The trained model, each client's statement, the metrics, and where they are kept.

    Raises:
        InvalidInput: A setting is wrong, or a run cannot be resumed as it was begun.
        Infeasible, Unsupported: No noise keeps a budget, or no accounting is known.
        BudgetExceeded: A shared ledger has not enough left; nothing was trained then.
        LedgerError: The ledger is missing, not sound, or not the one of this run.
        Interrupted: The run was asked to stop; it can be resumed.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> x = np.eye(4).repeat(20, 0)
        >>> settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "threads": 1}
        >>> udpfl.run(settings, data=(x, x.argmax(1)), model="logistic").privacy.epsilon <= 8
        True
    """
    began = time.perf_counter()
    asked = read_arguments(config, resume, model, data, sections)
    unclaimed = "clipping and noise were replaced" if protection else None
    prepare(asked, unclaimed)
    setup = Setup.of(asked.config, data=asked.data, test=test, model=asked.model, loss=loss)
    check(setup)
    folder = asked.folder or begin_folder(setup, setup.plans_within_budgets(), unclaimed)
    stored = StoredRun.read(folder, setup.model.layout.dimension, setup.fingerprints)
    with folder.locked():
        require_charges(stored, setup.holding)
        with Ledger(stored.ledger) as ledger:
            accounts = admit(setup.config, ledger, stored, setup.holding, not unclaimed)
            parts = Assembly(setup, stored, ledger, accounts, unclaimed, protection)
            announce(observers, "on_start", setup.config, folder.path)
            result = _train(parts, observers).write(began)
            announce(observers, "on_end", result)
    return result


def _train(parts: Assembly, observers: Sequence[Observer]) -> Ending:
    """All rounds that are left, and what the run has come to."""
    seconds_before = parts.stored.folder.drop_summary()
    server = parts.server()
    last = parts.restore(server)
    with patient_interrupt() as interrupted:
        metrics, watchers = parts.watchers(server, observers, interrupted)
        clients = parts.clients(parts.receiver(server, metrics, observers))
        if last is not None:
            metrics.note_missing(last)
        if server.round == len(parts.selection):
            log.warning("all rounds are already trained: only the results are written again")
        stopped = train(server, clients, parts.selection, watchers)
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
