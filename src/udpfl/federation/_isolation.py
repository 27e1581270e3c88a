"""Methods that see gradients without noise: what they send may depend on nothing else of them.

Where whole clients are hidden, noise is added to what a training returns, not to its gradients. A
method's own code sees those in its correction. So it works on copies, and is asked again with other
gradients: what it sends and keeps has to stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from udpfl.algorithms import Tensors
from udpfl.engine import Correct

SHOWN = (0.0, 1.0, 1e30)
"""Gradients that a method is shown in place of those of records, to see what it makes of them."""


class TakeTurns(BaseException):
    """Says that clients have to be trained one after the other; not for a method to catch."""


class Call(NamedTuple):
    """One call of a training: what whole clients were measured from, and what was returned."""

    origin: Tensor
    parameters: Tensor


class Shown:
    """What a method may know of a training. What it writes to a tensor reaches nobody."""

    def __init__(
        self, clients: tuple[str, ...], round_: int, learning_rates: Tensor, steps: Tensor
    ) -> None:
        self.clients, self._round = clients, round_
        self._learning_rates, self._steps = learning_rates, steps

    @property
    def round(self) -> int:
        """The first is 1. Keys of random numbers have it, so nobody may set it."""
        return self._round

    @property
    def learning_rates(self) -> Tensor:
        """[L], this round's."""
        return self._learning_rates.clone()

    @property
    def steps(self) -> Tensor:
        """[L] local steps of one call."""
        return self._steps.clone()


class TrainingTerms(Protocol):
    """What a method may know of a training beside what it computes."""

    clients: tuple[str, ...]

    @property
    def round(self) -> int: ...

    @property
    def learning_rates(self) -> Tensor: ...

    @property
    def steps(self) -> Tensor: ...


class Observed(TrainingTerms, Protocol):
    """A training that was watched."""

    returned: list[Call]

    def origin(
        self, start: Tensor, correct: Correct | None, state: Mapping[str, Tensor]
    ) -> Tensor: ...


class RepeatedTraining(Shown):
    """A training that returns what another one did, and shows corrections other gradients.

    What a method makes of it is the same if it uses nothing of gradients but what is returned. The
    same holds for what it calls it with: that is added to the noisy difference again, as it is.
    """

    def __init__(self, training: Observed, shown: float) -> None:
        super().__init__(training.clients, training.round, training.learning_rates, training.steps)
        self._training, self._calls, self._shown = training, list(training.returned), shown
        self._failed = False

    @property
    def is_same(self) -> bool:
        """Whether it was called as often as the other one, from the same places."""
        return not self._failed and not self._calls

    def __call__(
        self,
        start: Tensor,
        correct: Correct | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        try:
            call = self._calls.pop(0)
            if not are_equal(
                self._training.origin(start.clone(), correct, state or {}), call.origin
            ):
                self._failed = True
            if correct is not None:
                own, gradient = copied(state or {}), torch.full_like(start, self._shown)
                for _ in range(int(self.steps.max())):
                    on_copies(correct)(gradient, start, own)
            return call.parameters.clone()
        except BaseException:
            self._failed = True
            raise


def copied(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copies under the same names."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def on_copies(correct: Correct) -> Correct:
    """The same correction; what it writes to gradient or parameters reaches nobody."""
    return lambda gradient, parameters, state: correct(gradient.clone(), parameters.clone(), state)


def are_same(some: Tensors, others: Tensors) -> bool:
    """The same names in the same order, with the same numbers."""
    return list(some) == list(others) and all(map(are_equal, some.values(), others.values()))


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, bit by bit: zeros with other signs are not."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*bits)
