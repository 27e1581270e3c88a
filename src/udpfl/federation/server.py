"""The server half: its state, the stages, and aggregation.

It sees messages. It never sees records, accounts or budgets, and its files import nothing that
knows them (`tests/federation/test_server.py` holds that). In a simulation the trusted server and
the shuffler run here as well; in a deployment they are parties of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from udpfl.algorithms import Algorithm, ClientMessage, Tensors
from udpfl.errors import Unsupported
from udpfl.federation.request import Request
from udpfl.federation.stages import Stage
from udpfl.federation.stages.averaging import Averaging

_OWN = "server."
"""What the names of the method's tensors begin with in a checkpoint."""


class Server:
    """One federated method with its stages, from round to round.

    Args:
        algorithm: The method, of which the server half is used.
        start: The parameters that training begins with [d].
        stages: What happens to messages and model, in this order.
        averaging: How much the average over rounds keeps of earlier models, in [0, 1); 0 for the
            last model itself.
        learning_rate: The clients' learning rate by the number of the round, counted from 1.

    Example:
        >>> import torch
        >>> from udpfl import ClientMessage
        >>> from udpfl.algorithms import FedAvg, ServerStep
        >>> from udpfl.federation import Server
        >>> server = Server(FedAvg(ServerStep()), torch.zeros(2))
        >>> answer = {"update": torch.ones(2)}
        >>> _ = server.receive(1, [ClientMessage("a", 1, answer, (), {"declared_size": 9})])
        >>> server.model
        tensor([1., 1.])
    """

    def __init__(
        self,
        algorithm: Algorithm,
        start: Tensor,
        stages: Sequence[Stage] = (),
        averaging: float = 0.0,
        learning_rate: Callable[[int], float] = lambda round_: 1.0,
    ) -> None:
        self._algorithm, self._learning_rate = algorithm, learning_rate
        self._averaging = Averaging(start, averaging)
        self.stages: Sequence[Stage] = (*stages, self._averaging)
        """What happens to messages and model, in this order."""
        self.round = 0
        """The last round that was aggregated."""
        self.settled = 0
        """Clients need not keep their messages up to this round."""
        self._saved = 0
        self._steps: int | None = None
        self._state = algorithm.init(start)

    @property
    def model(self) -> Tensor:
        """The model of the run [d]: the last one, or an average over rounds."""
        return self._averaging.model

    @property
    def hides_participation(self) -> bool:
        """Whether a stage hides how many took part: figures that would tell it are left out."""
        return any(stage.hides_participation for stage in self.stages)

    def request(self, round_: int) -> Request:
        """What clients receive in a round."""
        received = dict(self._algorithm.broadcast(self._state))
        for stage in self.stages:
            _add(received, stage.request(), stage)
        self._steps = self._algorithm.steps(self._state)
        return Request(round_, received, self._learning_rate(round_), self.settled, self._steps)

    def receive(self, round_: int, messages: Sequence[ClientMessage]) -> list[ClientMessage]:
        """Aggregate a round's messages. Returns them as the stages left them, before `sort`."""
        device = self._state["model"].device
        seen = [message.to(device) for message in messages]
        for stage in self.stages:
            seen = stage.receive(round_, self._state, seen)
        self._state = self._algorithm.aggregate(self._state, self.sort(seen))
        for stage in self.stages:
            self._state = stage.publish(round_, self._state)
        self.round = round_
        return seen

    @contextmanager
    def provisionally(self) -> Iterator[None]:
        """What is received inside counts only if nothing is raised inside."""
        before = {name: tensor.clone() for name, tensor in self.state().items()}
        round_, saved = self.round, self._saved
        try:
            yield
        except BaseException:
            self.restore(round_, before)
            self._saved = saved
            raise

    def sort(self, messages: Sequence[ClientMessage]) -> Sequence[ClientMessage]:
        """Messages in the order in which the method reads them."""
        for stage in self.stages:
            messages = stage.sort(messages)
        return messages

    def measure(self) -> dict[str, Any]:
        """What stages, and a method that shares out steps, add to a round's line of metrics."""
        own = {} if self._steps is None else {"local_steps": self._steps}
        return own | {k: value for stage in self.stages for k, value in stage.measure().items()}

    def state(self) -> Tensors:
        """Named tensors from which `restore` goes on."""
        named = {f"{_OWN}{name}": tensor for name, tensor in self._state.items()}
        for stage in self.stages:
            _add(named, stage.state(), stage)
        return named

    def restore(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        """Go on after this round with what `state` returned then."""
        device = self._state["model"].device
        moved = {name: tensor.to(device) for name, tensor in tensors.items()}
        for stage in self.stages:
            stage.restore(moved)
        own = {name: tensor for name, tensor in moved.items() if name.startswith(_OWN)}
        self._state = {name.removeprefix(_OWN): tensor for name, tensor in own.items()}
        self.round = self._saved = round_

    def note_saved(self) -> None:
        """Note that a checkpoint of this round is on disk.

        The two latest are kept, so clients keep their messages since the older one.
        """
        self.settled, self._saved = self._saved, self.round


def _add(tensors: Tensors, more: Tensors, stage: Stage) -> None:
    """Add a stage's tensors, unless one of them has the name of another."""
    if taken := sorted(tensors.keys() & more.keys()):
        raise Unsupported(
            f"the stage {type(stage).__name__} uses the name {taken[0]!r} for a tensor, which is "
            "taken: give its tensors names of their own"
        )
    tensors |= more
