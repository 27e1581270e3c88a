"""`run_together`: several runs side by side in one process, their training merged round by round.

Every run is what `run` makes of it: its own folder, ledger, charges and statement. They go on in
lock step, and what their clients compute in a round is computed in few calls of the engine. There
are no threads: a run is a generator that asks for the answers of its clients (`course`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from torch import nn

from udpfl.config import Config
from udpfl.engine import Loss
from udpfl.engine.pooling import RecordPool
from udpfl.errors import InvalidInput
from udpfl.federation._common import Common
from udpfl.federation._course import course
from udpfl.federation._interrupts import patient_interrupt
from udpfl.federation._merged_steps import train_works
from udpfl.federation._opening import Asked, read_arguments
from udpfl.federation._questions import Question
from udpfl.federation.client import InProcessClients, Pending
from udpfl.federation.local_training import Step
from udpfl.federation.observers import Observer
from udpfl.federation.request import Answers
from udpfl.federation.result import Run
from udpfl.federation.watchers import Interrupted

log = logging.getLogger(__name__)

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
        test: Of all runs.
        loss: Of all runs.
        observers: Those of each run, by its place in `configs`.
        **sections: Settings on top of every configuration that is not of a resumed run.

    Returns:
        For each configuration its run, or what was raised in place of it.

    Raises:
        InvalidInput: Two of them share a ledger, or are to use other threads or devices.
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
    asked = [_read(config, model, data, sections) for config in configs]
    _require_independent([own for own in asked if isinstance(own, Asked)])
    common, interrupted = Common(), threading.Event()

    def interrupts() -> AbstractContextManager[threading.Event]:
        return nullcontext(interrupted)

    federations = [
        _Federation(None, own)
        if isinstance(own, Exception)
        else _Federation(course(own, test, loss, observers(number), None, interrupts, common))
        for number, own in enumerate(asked)
    ]
    try:
        for federation in federations:
            federation.open()
        with patient_interrupt(interrupted):
            _train(federations)
    finally:
        for federation in federations:
            federation.close()
    return [federation.result() for federation in federations]


def _read(
    config: Config | Mapping[str, Any] | str | Path | Resumed | None,
    model: nn.Module | Mapping[str, Any] | str | None,
    data: Any,
    sections: Mapping[str, Any],
) -> Asked | Exception:
    try:
        if isinstance(config, Resumed):
            own = None if isinstance(data, Mapping) else data
            built = model if isinstance(model, nn.Module) else None
            return read_arguments(None, config.folder, built, own, {})
        return read_arguments(config, None, model, data, sections)
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


@dataclass
class _Federation:
    """One of the runs, from question to question."""

    rounds: Generator[Question, Answers, Run] | None
    outcome: Run | BaseException | None = None
    question: Question | None = field(default=None, init=False)
    """What its round asks; None where it has come to its end."""

    def open(self) -> None:
        """Set up the run, up to its first round."""
        if self.rounds is not None:
            self._go_on(self.rounds.__next__)

    def answer(self, answers: Answers | Exception) -> None:
        """Go on with what clients answered, or with what was raised in place of that."""
        assert self.rounds is not None
        rounds, self.question = self.rounds, None
        if isinstance(answers, Exception):
            self._go_on(lambda: rounds.throw(answers))
        else:
            self._go_on(lambda: rounds.send(answers))

    def _go_on(self, step: Callable[[], Question]) -> None:
        try:
            self.question = step()
        except StopIteration as end:
            self.outcome = end.value
        except (Exception, Interrupted) as error:
            log.debug("a run has ended", exc_info=True)
            self.outcome = error

    def begin(self) -> Pending | Exception:
        """Who answers in this round, and what is to be computed."""
        try:
            request, chosen = self._asked.request, self._asked.chosen
            return self._clients.begin(request, chosen)
        except Exception as error:
            return error

    def finish(self, pending: Pending, step: Step | None) -> None:
        """Charge what was computed, and end the round with it."""
        try:
            answers: Answers | Exception = self._clients.finish(pending, step)
        except Exception as error:
            answers = error
        self.answer(answers)

    @property
    def _asked(self) -> Question:
        assert self.question is not None
        return self.question

    @property
    def _clients(self) -> InProcessClients:
        clients = self._asked.clients
        assert isinstance(clients, InProcessClients)
        return clients

    @property
    def round(self) -> int:
        """The number of its round."""
        return self._asked.request.round

    def close(self) -> None:
        """Let go of folder and ledger, wherever the run is."""
        if self.rounds is not None:
            self.rounds.close()

    def result(self) -> Run | Exception:
        """What the run came to."""
        assert isinstance(self.outcome, Run | Exception)
        return self.outcome


def _train(federations: Sequence[_Federation]) -> None:
    """All rounds of all runs."""
    pool = RecordPool()
    while going := [own for own in federations if own.question is not None]:
        # Those behind go on first: rounds of other numbers are not computed together.
        first = min(own.round for own in going)
        _train_round([own for own in going if own.round == first], pool)
        for own in federations:
            if isinstance(own.outcome, Interrupted):
                raise own.outcome


def _train_round(federations: Sequence[_Federation], pool: RecordPool) -> None:
    """One round of each of these runs."""
    begun: list[tuple[_Federation, Pending]] = []
    for own in federations:
        pending = own.begin()
        if isinstance(pending, Exception):
            own.answer(pending)
        else:
            begun.append((own, pending))
    works = [pending.work for _, pending in begun if pending.work is not None]
    steps = iter(train_works(works, pool))
    for own, pending in begun:
        step = None if pending.work is None else next(steps)
        if isinstance(step, Exception):
            own.answer(step)
        else:
            own.finish(pending, step)
