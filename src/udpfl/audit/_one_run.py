"""Audit of a whole run, trained once: which of many canaries were in it?

Each canary is put in or left out by a coin of its own. Whoever sees the run guesses; with
(epsilon, delta)-DP for one record the guesses cannot be right too often (Steinke, Nasr and
Jagielski 2023). Too loose to prove that a claim is tight; it looks at everything that a run does.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor, nn

from udpfl.audit._bounds import one_run_proved
from udpfl.audit.replay import per_sample
from udpfl.audit.verdict import POWER, finite
from udpfl.config import Config, load
from udpfl.data import DataSet
from udpfl.data.persons import NO_LABEL
from udpfl.data.records import Indices
from udpfl.engine import Loss
from udpfl.federation.builders import prepare_records
from udpfl.federation.observers import Observer
from udpfl.federation.persons import apply_to_rows
from udpfl.federation.run import run
from udpfl.federation.setup import Setup
from udpfl.federation.stages.trusted_server import EVERYONE
from udpfl.mechanisms.arrays import Floats

SHARES = (1.0, 0.5, 0.1)
"""How many of the canaries are guessed, surest first. Fixed beforehand; each pays for itself."""


@dataclass(frozen=True)
class Guesses:
    """How many guesses were right, and what that proves."""

    event: str
    canaries: int
    guesses: int
    right: int
    delta: float
    error: float

    @property
    def proved(self) -> float:
        """The largest epsilon that so many right guesses exclude."""
        return one_run_proved(self.canaries, self.guesses, self.right, self.delta, self.error)

    def needs(self, claimed: float) -> float:
        """Guesses right as often as randomised response of this epsilon would refute; inf if none.

        A run that leaks as much may leak it in ways that these guesses do not use.
        """

        def refutes(right: int) -> bool:
            count = (self.canaries, self.guesses, right)
            return one_run_proved(*count, self.delta, self.error) > claimed

        if refutes(self.guesses):
            needed = bisect_left(range(self.guesses), True, key=refutes)
            chance = special.betaincinv(needed, self.guesses - needed + 1, POWER)
            return float(special.logit(chance))
        return math.inf

    def to_dict(self, claimed: float) -> dict[str, Any]:
        """Plain data for JSON, beside the claimed epsilon."""
        return {**asdict(self), "proved": self.proved}


@dataclass(frozen=True)
class Surer:
    """Guesses that are right as often as randomised response of this epsilon would have refuted."""

    epsilon: float

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return "so few canaries cannot refute this claim, even if all guesses are right"
        return (
            "guesses as often right as those on an answer randomised with "
            f"ε = {self.epsilon:.3g} would have refuted it {100 * POWER:g} % of the time"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return finite(asdict(self))


@dataclass(frozen=True)
class SurerGuesses:
    """What the power of one run is stated for."""

    guesses: tuple[Guesses, ...]

    def caught(self, epsilon: float, delta: float) -> Surer:
        """By the guesses that need least."""
        return Surer(min(own.needs(epsilon) for own in self.guesses))


def guessed(
    scores: Floats, there: NDArray[np.bool_], delta: float, error: float, what: str
) -> list[Guesses]:
    """Guess the highest scores in and the lowest out, for every share of the canaries."""
    order = np.argsort(scores, kind="stable")
    found = []
    for share in SHARES:
        half = max(1, int(share * len(scores)) // 2)
        right = int(there[order[-half:]].sum()) + int((~there[order[:half]]).sum())
        event = f"{what}, {2 * half} guesses on {len(scores)} canaries"
        found.append(Guesses(event, len(scores), 2 * half, right, delta, error / len(SHARES)))
    return found


class ServersView(Observer):
    """Adds up how far a client's updates point along each canary's gradient at the model it had."""

    def __init__(
        self,
        client: str,
        network: nn.Module,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        told: Callable[[int], None] | None = None,
    ) -> None:
        self._client, self._x, self._y, self._told = client, x, y, told
        self._gradients = per_sample(network, loss)
        self._model = {
            name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad
        }
        self.scores = np.zeros(len(x))
        self.seen = False
        """Whether the client ever sent an update."""

    def on_message(self, message: Any) -> None:
        # What a trusted server lets out, or a shuffler hands on, has everybody's name or nobody's.
        if message.client not in (self._client, EVERYONE, "") or "update" not in message.tensors:
            return
        self.seen = True
        update = message.tensors["update"].double().cpu()
        for start in range(0, len(self._x), 64):
            part = slice(start, start + 64)
            gradients = self._gradients(self._model, self._x[part], self._y[part]).double()
            sizes = gradients.norm(dim=1).clamp(min=1e-12)
            self.scores[part] -= ((gradients @ update) / sizes).numpy()

    def on_model(self, round_: int, model: dict[str, Tensor]) -> None:
        self._model = {name: model[name] for name in self._model}
        if self._told is not None:
            self._told(round_)


@dataclass(frozen=True)
class OneRun:
    """What came of one run: what the server saw, and what the final model shows."""

    server: Floats | None
    """None where the method sends no updates that could be looked at."""
    final: Floats
    there: NDArray[np.bool_]

    def tests(self, delta: float, error: float) -> tuple[Guesses, ...]:
        """Every view; they share the error."""
        views = {"what the server sees": self.server, "what the final model shows": self.final}
        there = {name: scores for name, scores in views.items() if scores is not None}
        share = error / len(there)
        return tuple(
            test
            for name, scores in there.items()
            for test in guessed(scores, self.there, delta, share, name)
        )


def one_run(
    setup: Setup, client: int, count: int, told: Callable[[int], None] | None = None
) -> OneRun:
    """Train once with canaries among the records of one client; `told` of every round."""
    settings, data, parts = setup.config, setup.data, setup.parts
    network, loss = setup.trained_network, setup.trained_loss
    own_records = parts[client]
    chosen = np.random.default_rng(secrets.randbits(128)).permutation(own_records)[:count]
    there = np.array([secrets.randbits(1) for _ in chosen], dtype=bool)
    targets = data.train.targets.copy()
    targets[chosen] = _wrong(targets[chosen], data)
    owners = list(parts)
    owners[client] = np.setdiff1d(own_records, chosen[~there])
    train = replace(data.train, targets=targets, positions=None)
    marked = replace(data, train=train, owners=tuple(owners))
    x = prepare_records(setup.network, train.subset(chosen), torch.device("cpu"))
    y = torch.from_numpy(targets[chosen])
    view = ServersView(f"client-{client}", network, loss, x, y, told)
    with tempfile.TemporaryDirectory() as folder:
        own: dict[str, Any] = {
            "out": f"{folder}/run",
            "data": {
                "clients": len(parts),
                "public": 0,
                "declared_sizes": _declared(settings, parts),  # the coins are nobody's business
            },
            "training": {"averaging": 0.0},  # so that every model seen is the one sent out
        }
        if settings.privacy.enabled:
            own["privacy"] = _own_budget(settings, folder)
            if settings.privacy.accounting == "vector":  # which holds against who knows names, too
                own["training"]["shuffle"] = False
        result = run(
            load(settings, own),
            data=marked,
            model=setup.network,
            loss=setup.loss,
            observers=[view],
        )
    trained = apply_to_rows(result.model) if setup.has_persons else result.model
    with torch.no_grad():
        final = -loss(trained.eval()(x), y).double().numpy()
    return OneRun(view.scores if view.seen else None, final, there)


def _own_budget(settings: Config, folder: str) -> dict[str, Any]:
    """Settings with which a run is charged to nobody's budget: what an audit spends is no one's.

    Noise that follows results follows steps of the model then: all records are the clients', and
    what is claimed holds whatever it follows.
    """
    if settings.privacy.pace != "plateau":
        return {"ledger": None}
    return {"ledger": f"{folder}/ledger.sqlite", "pace_follows": "update"}


def _wrong(targets: NDArray[Any], data: DataSet) -> NDArray[Any]:
    """A label or a value that no model would guess: what it remembers of it, it saw."""
    if data.task == "classification":
        wrong = np.where(targets == NO_LABEL, NO_LABEL, (targets + 1) % data.outputs)
        return np.asarray(wrong, dtype=targets.dtype)
    return np.asarray(targets + 3 * data.train.rows.targets.std(), dtype=targets.dtype)


def _declared(settings: Config, parts: list[Indices]) -> int | list[int]:
    """The sizes that the configuration declares, or those before any coin was tossed."""
    declared = settings.data.declared_sizes
    return [len(part) for part in parts] if isinstance(declared, str) else declared
