"""`run_together`: several runs side by side in one process, their training merged round by round.

Every run is what `run` makes of it: its own folder, ledger, charges and statement. They go on in
lock step, and what their clients compute in a round is computed in few calls of the engine. There
are no threads: a run is a generator that asks for the answers of its clients (`course`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import nn

from udpfl.config import Config
from udpfl.data.frames import is_columns
from udpfl.engine import Loss
from udpfl.errors import InvalidInput
from udpfl.federation._common import Common
from udpfl.federation._course import course
from udpfl.federation._interrupts import patient_interrupt
from udpfl.federation._lock_step import Federation, train_in_lock_step
from udpfl.federation._opening import Asked, read_arguments
from udpfl.federation.observers import Observer
from udpfl.federation.result import Run

ObserversOf = Callable[[int], Sequence[Observer]]
"""Who observes a run, by its place among those that are run together."""


def nobody(number: int) -> Sequence[Observer]:
    """No observers."""
    return ()


@dataclass(frozen=True)
class Resumed:
    """A run to go on with, in the place of a configuration.

    Example:
        >>> from udpfl.federation import Resumed
        >>> Resumed("runs/first").folder
        'runs/first'
    """

    folder: str | Path
    """Its run folder; code that it names has to be trusted, as for `udpfl.run`."""


def run_together(
    configs: Sequence[Config | Mapping[str, Any] | str | Path | Resumed | None],
    *,
    model: nn.Module | Mapping[str, Any] | str | None = None,
    data: Any = None,
    test: Any = None,
    loss: Loss | None = None,
    records: Sequence[ArrayLike | None] | None = None,
    observers: ObserversOf = nobody,
    **sections: Any,
) -> list[Run | Exception]:
    """Train several federations side by side, each as `udpfl.run` trains it.

    Where runs train the same network, what their clients compute in a round becomes one call of
    the engine: it pays where a single run leaves the device idle. Runs may differ in everything.

    Guarantee: each run charges, states and writes what it does by itself. With a seeded stream its
    model is the same up to rounding. An error ends the run that it is in, and no other.

    Args:
        configs: A configuration for each run, as for `udpfl.run`, or `Resumed`.
        model: Of all runs, as for `udpfl.run`.
        data: Of all runs; equal records are in memory once.
        records: For each run the positions of the training records that it has, if not all.
        test: Of all runs.
        loss: Of all runs.
        observers: Those of each run, by its place in `configs`.
        **sections: Settings on top of every configuration that is not of a resumed run.

    Returns:
        For each configuration its run, or what was raised in place of it.

    Raises:
        InvalidInput: Two of them share a ledger, or are to use other threads or devices, or
            `records` are not as many as the configurations.
        Interrupted: All were asked to stop, and can be resumed from their folders.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> x = np.eye(4).repeat(20, 0)
        >>> settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "threads": 1}
        >>> grid = [{**settings, "privacy": {"epsilon": epsilon}} for epsilon in (2, 8)]
        >>> runs = udpfl.run_together(grid, data=(x, x.argmax(1)), model="logistic")
        >>> [run.privacy.epsilon <= epsilon for run, epsilon in zip(runs, (2, 8))]
        [True, True]
    """
    given = [None] * len(configs) if records is None else records
    if len(given) != len(configs):
        raise InvalidInput("records", f"{len(given)} for {len(configs)} runs")
    read = partial(_read, model=model, data=data, sections=sections)
    asked = list(map(read, configs, given))
    _require_independent([own for own in asked if isinstance(own, Asked)])
    interrupted = threading.Event()
    begin = partial(_begun, test=test, loss=loss, interrupted=interrupted, common=Common())
    federations = [begin(own, observers(number)) for number, own in enumerate(asked)]
    return _trained(federations, interrupted)


def _trained(
    federations: Sequence[Federation], interrupted: threading.Event
) -> list[Run | Exception]:
    """What every run has come to, in the end."""
    try:
        for federation in federations:
            federation.open()
        with patient_interrupt(interrupted):
            train_in_lock_step(federations)
    finally:
        for federation in federations:
            federation.close()
    return [federation.result() for federation in federations]


def _begun(
    asked: Asked | Exception,
    observers: Sequence[Observer],
    *,
    test: Any,
    loss: Loss | None,
    interrupted: threading.Event,
    common: Common,
) -> Federation:
    """A run that is about to begin, or what was wrong with its settings."""

    def interrupts() -> AbstractContextManager[threading.Event]:
        return nullcontext(interrupted)

    if isinstance(asked, Exception):
        return Federation(None, asked)
    return Federation(course(asked, test, loss, observers, None, interrupts, common))


def _read(
    config: Config | Mapping[str, Any] | str | Path | Resumed | None,
    records: ArrayLike | None,
    *,
    model: nn.Module | Mapping[str, Any] | str | None,
    data: Any,
    sections: Mapping[str, Any],
) -> Asked | Exception:
    try:
        if isinstance(config, Resumed):
            own = None if isinstance(data, Mapping) and not is_columns(data) else data
            built = model if isinstance(model, nn.Module) else None
            asked = read_arguments(None, config.folder, built, own, {})
        else:
            asked = read_arguments(config, None, model, data, sections)
        return asked if records is None else asked.with_records(records)
    except Exception as error:
        return error


def _require_independent(asked: Sequence[Asked]) -> None:
    """Refuse runs of which one decides on another."""
    for key in ("threads", "device"):
        if len({getattr(own.config, key) for own in asked}) > 1:
            raise InvalidInput(key, "runs that are trained together need the same")
    for one, other in combinations([ledger for own in asked if (ledger := _ledger(own))], 2):
        if one == other:
            raise InvalidInput(
                "privacy.ledger",
                f"two runs share the ledger {str(one)!r}: what one of them reserves and spends "
                f"decides what the other may plan; run them one after the other",
            )


def _ledger(asked: Asked) -> Path | None:
    """The ledger that a run shares with others, if it does."""
    shared = asked.config.privacy.ledger if asked.folder is None else asked.folder.identity.ledger
    return Path(shared).resolve() if shared else None
