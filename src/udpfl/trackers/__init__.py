"""Experiment trackers: a run's figures in TensorBoard or MLflow, while it trains.

    udpfl.run(..., observers=[TensorBoard()])
    udpfl run --track tensorboard --track mlflow

Needs the extra `track`. A tracker that fails says so once; the training goes on without it.
"""

from __future__ import annotations

from udpfl.errors import InvalidInput
from udpfl.trackers.base import Tracker
from udpfl.trackers.mlflow import MLflow
from udpfl.trackers.tensorboard import TensorBoard

TRACKERS: dict[str, type[TensorBoard] | type[MLflow]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
}


def tracker(name: str) -> Tracker:
    """The tracker of that name, with its default settings.

    Args:
        name: "tensorboard" or "mlflow".

    Returns:
        An observer for `udpfl.run`.

    Raises:
        InvalidInput: There is no such tracker.
        MissingExtra: Its package is not installed.

    Example:
        >>> from udpfl.trackers import tracker
        >>> tracker("tensorboard").name
        'TensorBoard'
    """
    if name not in TRACKERS:
        raise InvalidInput("track", f"must be one of {', '.join(TRACKERS)}, got {name!r}")
    return TRACKERS[name]()


__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "tracker"]
