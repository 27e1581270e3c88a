"""A method's client half, call by call: run again from its beginning whenever an answer arrives.

A method calls its training as a function, so it cannot be left in the middle while others compute.
It is left by an exception instead, and run again with all answers so far. What it asked before it
has to ask again, to the last bit, and it works on copies each time. A run from the beginning costs
little: all that takes time is in the answers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from torch import Tensor

from udpfl.algorithms import BUILT_IN, Algorithm, Tensors
from udpfl.engine import Correct, Trained
from udpfl.engine.merging import Call
from udpfl.errors import Unsupported
from udpfl.federation._isolation import Shown, TrainingTerms, are_equal, are_same, copied


class Unanswered(BaseException):
    """Ends a method at a training that nobody has answered yet; not for a method to catch."""


class Asked(NamedTuple):
    """One training as a method asked for it."""

    start: Tensor
    correct: Correct | None
    state: Tensors


class Answer(NamedTuple):
    """What a method asked, and the parameters that it got."""

    asked: Asked
    parameters: Tensor


class InCalls(TrainingTerms, Protocol):
    """A training whose calls of the engine somebody else answers."""

    def in_calls(
        self, start: Tensor, correct: Correct | None, state: Mapping[str, Tensor]
    ) -> Generator[Call, Trained, Tensor]: ...


def is_replayable(method: Algorithm) -> bool:
    """Whether the client half is known to be a function of its arguments: it is built in."""
    kind = type(method)
    if "client_step" in vars(method):  # an object may have one that its class has not
        return False
    return kind in BUILT_IN.values() or kind.client_step is Algorithm.client_step


def replayed(
    method: Algorithm, received: Tensors, kept: Tensors, training: InCalls
) -> Generator[Call, Trained, tuple[Tensors, Tensors]]:
    """What a method sends and keeps: yields every call of the engine, and is sent what came of it.

    Raises:
        Unsupported: The method asks for something else when it is run again.
    """
    answers: list[Answer] = []
    while True:
        replay = ReplayedTraining(training, answers)
        found: tuple[Tensors, Tensors] | None = None
        with suppress(Unanswered):
            found = method.client_step(copied(received), copied(kept), replay)
        replay.require_same(method.name)
        if replay.asked is None:
            assert found is not None
            return found
        parameters = yield from training.in_calls(*replay.asked)
        answers.append(Answer(replay.asked, parameters))


class ReplayedTraining(Shown):
    """A training that answers as it did before, and ends the method at the first new question."""

    def __init__(self, training: InCalls, answers: list[Answer]) -> None:
        super().__init__(training.clients, training.round, training.learning_rates, training.steps)
        self._answers, self._given, self._is_same = answers, 0, True
        self.asked: Asked | None = None
        """What nobody has answered yet."""

    def __call__(
        self,
        start: Tensor,
        correct: Correct | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        asked = Asked(start.clone(), correct, copied(state or {}))
        if self._given == len(self._answers):
            self.asked = self.asked or asked
            raise Unanswered
        before, parameters = self._answers[self._given]
        self._given += 1
        if not (
            are_equal(asked.start, before.start)
            and are_same(asked.state, before.state)
            and (asked.correct is None) == (before.correct is None)
        ):
            self._is_same = False
        return parameters.clone()

    def require_same(self, method: str) -> None:
        """Raise where the method did not ask what it had asked before."""
        if not self._is_same or self._given < len(self._answers):
            raise Unsupported(
                f"{method} asks for another training when it is run again with the same numbers: "
                f"train such a run by itself"
            )
