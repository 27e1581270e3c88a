"""`run`: from a configuration to a trained model and a ledger, top to bottom."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from udpfl.config import Config
from udpfl.engine import Loss
from udpfl.federation.admission import admit, require_charges
from udpfl.federation.assembly import Assembly
from udpfl.federation.ending import Ending
from udpfl.federation.interrupts import patient_interrupt
from udpfl.federation.loop import train
from udpfl.federation.observers import Observer, announce
from udpfl.federation.opening import Begun, advise, begin_folder, read_arguments, require_ledger
from udpfl.federation.outcome import Run
from udpfl.federation.protection import Protection
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

    Parameters
    ----------
    config
        A file, a mapping or a `Config`; the embedded default if left out.
    model
        Any `nn.Module`, the name of a model, or a section of settings.
    data, test
        Anything that `udpfl.data.as_dataset` takes, or a section of settings.
    loss
        Gives one number per sample.
    resume
        Continues a run folder. Code that only the folder names is refused until
        `udpfl.plugins.trust` allows it.
    observers
        See every released message and every round's model.
    protection
        Replaces clipping and noise: for audits, so nothing is claimed for such a run.
    **sections
        Settings on top of `config`, such as `privacy={"epsilon": 2}` or `seed=1`.

    Returns
    -------
    Run
        The trained model, the privacy statement of each client, the metrics of each round, and
        where they are kept.

    Raises
    ------
    InvalidInput
        Where a setting is wrong, or a run cannot be resumed as it was begun.
    BudgetExceeded
        Where a shared ledger has not enough left; nothing was trained then.

    Examples
    --------
    >>> import udpfl
    >>> result = udpfl.run(privacy={"epsilon": 4}, training={"rounds": 20})  # doctest: +SKIP
    >>> print(result.privacy, result.accuracy)  # doctest: +SKIP
    """
    began = time.perf_counter()
    asked = read_arguments(config, resume, model, data, sections)
    unclaimed = "clipping and noise were replaced" if protection else None
    require_ledger(asked, unclaimed)
    if asked.config.threads is not None:
        torch.set_num_threads(asked.config.threads)
    setup = Setup.of(asked.config, data=asked.data, test=test, model=asked.model, loss=loss)
    bytes_per_sample = setup.prepare()
    advise(setup.config)
    folder = asked.folder or begin_folder(setup, setup.plans_within_budgets(), unclaimed)
    begun = Begun.read(folder, setup)
    with folder.locked():
        require_charges(begun.ledger, folder, begun.run, setup.holding.parts, setup.holding.block)
    with folder.locked(), Ledger(begun.ledger) as ledger:
        accounts = admit(
            setup.config, ledger, begun.run, folder.path, setup.holding, begun.plans, not unclaimed
        )
        if ledger.is_new and begun.has_shared_ledger:
            log.warning("charges go to %s (new): no run has used this ledger before", begun.ledger)
        seconds_before = folder.drop_summary()
        parts = Assembly(setup, begun, ledger, accounts, unclaimed, protection)
        server, clients = parts.server(), parts.clients(bytes_per_sample)
        announce(observers, "on_start", setup.config, folder.path)
        with patient_interrupt() as interrupted:
            metrics, watchers = parts.watchers(server, observers, interrupted)
            if server.round == len(parts.selection):
                log.warning("all rounds were trained before: only the results are written again")
            stopped = train(server, clients, parts.selection, watchers)
        ending = Ending(
            setup, begun, ledger, parts.statements, metrics.rows, server.model, stopped, began,
            seconds_before,
        )  # fmt: skip
        result = ending.write()
        announce(observers, "on_end", result)
    return result
