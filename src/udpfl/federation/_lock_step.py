"""Several runs driven side by side: round by round, what their clients compute in few calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from udpfl.engine.pooling import RecordPool
from udpfl.federation._merged_steps import train_works
from udpfl.federation._questions import Question
from udpfl.federation.client import InProcessClients, Pending
from udpfl.federation.local_training import Step
from udpfl.federation.request import Answers
from udpfl.federation.result import Run
from udpfl.federation.watchers import Interrupted

log = logging.getLogger(__name__)


@dataclass
class Federation:
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


def train_in_lock_step(federations: Sequence[Federation]) -> None:
    """All rounds of all runs.

    Raises:
        Interrupted: One of them was asked to stop after its round.
    """
    pool = RecordPool()
    while going := [own for own in federations if own.question is not None]:
        # Those behind go on first: rounds of other numbers are not computed together.
        first = min(own.round for own in going)
        _train_round([own for own in going if own.round == first], pool)
        for own in federations:
            if isinstance(own.outcome, Interrupted):
                raise own.outcome


def _train_round(federations: Sequence[Federation], pool: RecordPool) -> None:
    """One round of each of these runs."""
    begun: list[tuple[Federation, Pending]] = []
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
