"""Observers: what may be watched of a run, read-only, by attacks, trackers and progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from udpfl.algorithms import ClientMessage
from udpfl.config import Config

if TYPE_CHECKING:
    from udpfl.federation.result import Run


class Observer(Protocol):
    """Override what you want to see. Tensors are copies: changing them changes nothing.

    A run that nobody wants to see messages of stores none: after a crash they are gone.

    Example:
        >>> from udpfl import Observer
        >>> class Losses(Observer):
        ...     def on_round(self, row):
        ...         print(row["round"], row["loss"])
        >>> Losses().on_round({"round": 1, "loss": 0.5})
        1 0.5
    """

    def on_message(self, message: ClientMessage) -> None:
        """A client's released message, as the server receives it."""
        return None

    def on_model(self, round_: int, model: dict[str, Tensor]) -> None:
        """The global model after a round, by the user's own parameter names."""
        return None

    def on_round(self, row: dict[str, Any]) -> None:
        """The round's line of metrics."""
        return None


class Follower(Observer, Protocol):
    """An observer that also sees where a run begins and ends. Either method may be left out."""

    def on_start(self, config: Config, folder: Path) -> None:
        """Before the first round, or before the first one after a resume."""
        return None

    def on_end(self, run: Run) -> None:
        """The finished run; not called where a run is interrupted or fails."""
        return None


def sees_messages(observer: Observer) -> bool:
    """Whether an observer does something with messages; where none does, they are not stored."""
    return _has_own(observer, "on_message")


def sees_models(observer: Observer) -> bool:
    """Whether an observer does something with models."""
    return _has_own(observer, "on_model")


def _has_own(observer: Observer, name: str) -> bool:
    method = getattr(observer, name, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(Observer, name)


def announce(observers: Iterable[Observer], moment: str, *what: Any) -> None:
    """Tell those who have a method for this moment, "on_start" or "on_end"."""
    for observer in observers:
        if told := getattr(observer, moment, None):
            told(*what)
