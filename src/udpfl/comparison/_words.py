"""Keys and values of a grid in plain words, for axes, headings and legends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from udpfl.comparison.axes import said

_PLAIN = {
    "data.alpha": "Dirichlet α",
    "data.name": "data set",
    "model.name": "model",
    "privacy.clip": "clipping norm",
    "privacy.delta": "δ",
    "privacy.epsilon": "ε per client",
    "training.algorithm": "method",
    "training.clients_per_round": "clients per round",
}
_METRICS = {"rmse": "RMSE", "mae": "MAE", "mse": "MSE"}


def plain_key(key: str) -> str:
    """What a key is called by people who have not read the configuration."""
    return _PLAIN.get(key) or key.rpartition(".")[2].replace("_", " ")


def plain_keys(keys: tuple[str, ...]) -> dict[str, str]:
    """The plain name of every key; in full where two would be called the same."""
    names = {key: plain_key(key) for key in keys}
    return {
        key: name if list(names.values()).count(name) == 1 else key for key, name in names.items()
    }


def plain_metric(name: str) -> str:
    """Accuracy as a word, errors as abbreviations."""
    return _METRICS.get(name, name)


def plain_settings(settings: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The settings of a cell: words by themselves, numbers with what they are of."""
    parts = [
        value if isinstance(raw, str) else f"{_shortest(names[key])}\N{NO-BREAK SPACE}{value}"
        for key, raw in settings.items()
        for value in (said(raw),)
    ]
    return ", ".join(parts) or "all runs"


def _shortest(name: str) -> str:
    return "ε" if name == "ε per client" else name
