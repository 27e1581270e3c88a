"""What a federated method is: one file with both halves, the client's and the server's.

The client half works on the lane axis: tensors have a leading axis of clients, many in one process
or a single one in a process of its own. The server half sees messages and nothing else. All state
is named tensors, so it can be stored, sent and restored without knowing the method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from udpfl.accounting.events import Unit
from udpfl.algorithms.message import ClientMessage, Tensors
from udpfl.algorithms.public import PublicData
from udpfl.engine import Correct
from udpfl.errors import Unsupported
from udpfl.mechanisms import Mechanism, Randomiser

NOISY_UPDATE = (
    'The update is a sum of gradients with clip and noise, or with privacy.unit = "client" it gets '
    "clip and noise as a whole; it costs as much as that noise"
)
"""What is promised of a client's update, whichever unit is hidden."""


WithoutRecords = Literal["stays", "moves"]
"""What local training comes to for a client without records: it stays at its start, or it moves to
where the method's correction leads it with gradients of zero."""


class LocalTraining(Protocol):
    """What a method may do with the records of its lanes: train on them, privately.

    Every call is charged by itself, so a method cannot forget to pay.
    """

    clients: tuple[str, ...]

    @property
    def round(self) -> int:
        """The first is 1."""

    @property
    def learning_rates(self) -> Tensor:
        """[L], this round's: a copy each time."""

    @property
    def steps(self) -> Tensor:
        """[L] local steps of one call: a copy each time."""

    def __call__(
        self, start: Tensor, correct: Correct | None = None, state: Mapping[str, Tensor] = ...
    ) -> Tensor:
        """Train from parameters [L, d]; returns the new ones. `correct` post-processes each
        noisy gradient and sees `state` [L, ...]. Where whole clients are hidden gradients have no
        noise: the way from `start` to what is returned has it."""


@dataclass(frozen=True)
class Terms:
    """What everybody knows of a run before it begins: settings, nothing of any record.

    Example:
        >>> from udpfl.algorithms import Terms
        >>> terms = Terms(5, 5, rounds=10, local_steps=4, learning_rate=lambda round_: 0.1)
        >>> terms.learning_rate(1)
        0.1
    """

    clients: int
    """All clients of the federation."""
    clients_per_round: int
    """How many of them are asked in each round."""
    rounds: int
    """How many there are."""
    local_steps: int
    """Steps of a client in one training."""
    learning_rate: Callable[[int], float]
    """The clients' learning rate in round 1, 2, ..., rounds."""
    seed: int = 0
    """Of the run; everybody may know it."""


@dataclass(frozen=True)
class Target:
    """What a method with noise of its own is to aim at; nobody says that it hits.

    Example:
        >>> from udpfl.algorithms import Target
        >>> Target(epsilon=2.0, delta=1e-5, clip=1.0, smallest=100).moved
        0.02
    """

    epsilon: float
    """As in `privacy.epsilon`."""
    delta: float
    """As in `privacy.delta`."""
    clip: float
    """Norm to which a client's parameters or its update are clipped."""
    smallest: int
    """Declared records of the smallest client."""
    dimension: int = 1
    """Parameters of the model."""

    @property
    def moved(self) -> float:
        """How far one record would move a mean over records of such vectors."""
        return 2 * self.clip / self.smallest


@dataclass(frozen=True)
class OwnNoise:
    """Noise or randomised response that a method prescribes. What is charged is what it hides.

    Example:
        >>> from udpfl import Gaussian
        >>> from udpfl.algorithms import OwnNoise
        >>> noise = OwnNoise(Gaussian(0.5), down=None, claim="less than its authors claim")
        >>> noise.up.std
        0.5
    """

    up: Mechanism | Randomiser
    """Noise on a client's clipped parameters, or answers about its clipped update."""
    down: Mechanism | None
    """On the global model, before clients receive it."""
    claim: str
    """What its authors promise of it, and why that is not what is stated."""


@dataclass(frozen=True)
class ServerStep:
    """How the server moves: model += learning_rate * v, v = momentum * v + mean update.

    Example:
        >>> import torch
        >>> from udpfl.algorithms import ServerStep
        >>> step = ServerStep(learning_rate=0.5)
        >>> step.apply(step.init(torch.zeros(2)), torch.ones(2))["model"]
        tensor([0.5000, 0.5000])
    """

    learning_rate: float = 1.0
    """What the step is multiplied by."""
    momentum: float = 0.0
    """How much of the last step is kept, in [0, 1)."""

    def init(self, parameters: Tensor) -> Tensors:
        """The server's state at the start."""
        state = {"model": parameters.clone()}
        if self.momentum:
            state["velocity"] = torch.zeros_like(parameters)
        return state

    def apply(self, server: Tensors, step: Tensor) -> Tensors:
        """The state after one step."""
        if self.momentum:
            step = self.momentum * server["velocity"] + step
            server = {**server, "velocity": step}
        return {**server, "model": server["model"] + self.learning_rate * step}


class Algorithm(ABC):
    """A federated method. Options of the configuration become keyword arguments of `__init__`.

    Args:
        server: How the server moves, from the settings of the run.

    Example:
        >>> import torch
        >>> from udpfl import Algorithm
        >>> from udpfl.algorithms import ServerStep, stacked
        >>> class Unweighted(Algorithm):
        ...     name = "unweighted"
        ...     def aggregate(self, server, messages):
        ...         return self.server.apply(server, stacked(messages, "update").mean(0))
        >>> Unweighted(ServerStep()).init(torch.zeros(2))["model"]
        tensor([0., 0.])
    """

    name: ClassVar[str]
    trainings: ClassVar[int] = 1
    """How often `client_step` trains in a round. Noise is planned for that many; what is charged is
    what really happened."""
    trusts_server: ClassVar[bool] = False
    """Whether clients send clipped updates without noise, which a trusted server adds to their sum.
    Then `aggregate` gets a single message, the noisy mean."""
    sends_update: ClassVar[bool] = True
    """Whether messages have an "update", from the model that was sent to the client's own."""
    shares_steps: ClassVar[bool] = False
    """Whether the method shares out the local steps over the rounds (`steps`). All rounds together
    have as many as were planned, `training.rounds` times `training.local_steps`, no more."""
    participation: float = 1.0
    """Probability that a client takes part in a round, by a coin that nobody else sees."""
    without_records: ClassVar[WithoutRecords | None] = "stays"
    """What a client sends that has no records. With privacy.unit = "client" an update is compared
    with that one. Where a client "moves", the way it would go without records is computed, and what
    its records add to that is clipped and noised. A class that defines a `client_step` of its own
    has to say it again. None says nothing: then both updates may lie anywhere within the clip, and
    twice the clip is charged."""
    paper: ClassVar[str] = ""
    """Where the method comes from."""
    releases: ClassVar[str] = ""
    """What a client sends in a round."""
    unit: ClassVar[Unit] = "record"
    """Whose presence the noise hides. A method for records works for whole clients as well, where
    privacy.unit asks for that."""
    guarantee: ClassVar[str] = (
        "Everything that a client sends is computed from gradients with clip and noise, or with "
        'privacy.unit = "client" from an update that gets clip and noise as a whole; it costs as '
        "much as that noise."
    )
    """What is promised about a message. The default holds for every method, because records are
    reached through `LocalTraining` only."""
    terms: Terms
    needs_public: ClassVar[bool] = False
    """Whether the server half learns from public records; a run without any is then refused."""
    _public: PublicData | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        first = {
            name: next(i for i, own in enumerate(cls.__mro__) if name in vars(own))
            for name in ("client_step", "without_records")
        }
        if first["client_step"] < first["without_records"]:  # said of another `client_step`
            cls.without_records = None

    def __init__(self, server: ServerStep) -> None:
        self.server = server

    def agree(self, terms: Terms) -> None:
        """Note the terms of the run; called once, before anything is planned. A method that cannot
        keep to them raises."""
        self.terms = terms

    def prepare(self, public: PublicData) -> None:
        """Called once before training, with the public split and the public seed."""
        self._public = public

    @property
    def public(self) -> PublicData:
        """What `prepare` brought, for the server half."""
        if self._public is None:
            raise Unsupported(f"{self.name}: the server was not prepared with public data")
        return self._public

    def own_noise(self, target: Target) -> OwnNoise | None:
        """The noise of a method that prescribes it; None where it is calibrated to the budget.

        With noise clients release their clipped parameters, not how far those moved; with a
        randomiser they release answers about how far those moved.
        """
        return None

    def init(self, parameters: Tensor) -> Tensors:
        """Server state for initial parameters [d]; its entry "model" is the global model."""
        return self.server.init(parameters)

    def broadcast(self, server: Tensors) -> Tensors:
        """The part of the server's state that clients receive."""
        return {"model": server["model"]}

    def steps(self, server: Tensors) -> int | None:
        """Local steps of the next round, by the server's state; None for training.local_steps.

        Where `shares_steps` is set. Clients do not go beyond what was planned for all rounds.
        """
        return None

    def client_init(self, parameters: Tensor) -> Tensors:
        """State of one client before its first round; empty where a method keeps none."""
        return {}

    def client_step(
        self, received: Tensors, state: Tensors, train: LocalTraining
    ) -> tuple[Tensors, Tensors]:
        """The client half: from what was received and each client's own state [L, ...] to the
        tensors that are released and the new state, both [L, ...].

        How far a client moved in one training, where a method has no other idea.
        """
        return {"update": local_update(received, train)}, state

    @abstractmethod
    def aggregate(self, server: Tensors, messages: Sequence[ClientMessage]) -> Tensors:
        """The server half: the state after this round's messages."""


def local_update(
    received: Tensors, train: LocalTraining, correct: Correct | None = None, **lane: Tensor
) -> Tensor:
    """How far every client moves from the model it received [L, d], in one training.

    Args:
        received: What the server sent; its entry "model" [d] is where training starts.
        train: Trains the clients of this call, privately.
        correct: Post-processes each noisy gradient; none if left out.
        **lane: What `correct` gets to see beside its gradient, [L, ...].

    Returns:
        The parameters after training less those before [L, d].

    Example:
        >>> import torch
        >>> from udpfl.algorithms import local_update
        >>> class Add:
        ...     clients = ("a", "b")
        ...     def __call__(self, start, correct=None, state=None): return start + 1
        >>> local_update({"model": torch.zeros(3)}, Add()).shape
        torch.Size([2, 3])
    """
    start = received["model"].expand(len(train.clients), -1)
    trained = train(start, correct, lane)
    is_shared = trained.untyped_storage().data_ptr() == start.untyped_storage().data_ptr()
    if is_shared or not getattr(train, "hands_over", False):
        return trained - start
    return trained.sub_(start)  # of a thousand clients another copy is a matter of gigabytes


def stacked(messages: Sequence[ClientMessage], name: str) -> Tensor:
    """One tensor of all messages, with a leading axis of messages.

    Args:
        messages: At least one.
        name: Which of their tensors.

    Returns:
        [messages, ...], in the order of the messages.

    Raises:
        KeyError: A message has no tensor of this name.

    Example:
        >>> import torch
        >>> from udpfl import ClientMessage
        >>> from udpfl.algorithms import stacked
        >>> answers = [ClientMessage(name, 1, {"update": torch.ones(3)}) for name in "ab"]
        >>> stacked(answers, "update").shape
        torch.Size([2, 3])
    """
    return torch.stack([message.tensors[name] for message in messages])


def weighted_mean(messages: Sequence[ClientMessage], name: str) -> Tensor:
    """Mean of one tensor over the messages, weighted by declared public sizes.

    Args:
        messages: At least one, each with a "declared_size" in its metadata.
        name: Which of their tensors.

    Returns:
        A tensor of the same shape.

    Raises:
        KeyError: A message has no tensor of this name, or no declared size.

    Example:
        >>> import torch
        >>> from udpfl import ClientMessage
        >>> from udpfl.algorithms import weighted_mean
        >>> sizes = {1.0: {"declared_size": 3}, 5.0: {"declared_size": 1}}
        >>> all_ = [ClientMessage("", 1, {"w": torch.tensor([v])}, (), s) for v, s in sizes.items()]
        >>> weighted_mean(all_, "w")
        tensor([2.])
    """
    weights = [message.weight for message in messages]
    total = sum(weights)
    mean = torch.zeros_like(messages[0].tensors[name])
    weighted = torch.empty_like(mean)  # one place for all: new memory each time costs more
    for message, weight in zip(messages, weights, strict=True):
        mean += torch.mul(message.tensors[name].detach(), weight / total, out=weighted)
    return mean
