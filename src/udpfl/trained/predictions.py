"""What a model says of records: labels and probabilities, or numbers in their own units."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data.records import Array
from udpfl.errors import InvalidInput
from udpfl.runs.preprocessing import Preprocessing

PREDICTION = "prediction"
"""The column of predicted labels."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """One prediction for each row; a row that could not be used has none.

    Example:
        >>> import numpy as np
        >>> from udpfl.runs.preprocessing import Preprocessing
        >>> from udpfl.trained import Predictions
        >>> meaning = Preprocessing((2,), "float32", 2, "classification", ("no", "yes"))
        >>> Predictions(meaning, np.array([[2.0, 0.0]]), np.array([True])).labels.tolist()
        ['no']
    """

    preprocessing: Preprocessing
    """What the outputs mean."""
    outputs: Array
    """The model's own answers [m, k], for the rows that were used."""
    used: Array
    """[n] bool: whether a row was used; rows with missing cells may be left out."""
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Columns of the table that stand beside the predictions."""

    def __len__(self) -> int:
        return len(self.used)

    @property
    def probabilities(self) -> Array:
        """Of every class [m, classes], for the rows that were used."""
        if self.preprocessing.task != "classification":
            raise InvalidInput("task", "a regression has values, not probabilities")
        scores = self.outputs.reshape(len(self.outputs), -1).astype(np.float64)
        if scores.shape[1] == 1:  # the score of the second of two classes
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: Array = scores / scores.sum(axis=1, keepdims=True)
        return shares

    @property
    def labels(self) -> Array:
        """The most probable class of every row that was used, by its name."""
        labels: Array = np.array(self._names, dtype=object)[self.probabilities.argmax(axis=1)]
        return labels

    @property
    def values(self) -> Array:
        """Predicted numbers [m, t] in the units of their columns, for the rows that were used."""
        if self.preprocessing.task != "regression":
            raise InvalidInput("task", "a classification has labels, not values")
        outputs = self.outputs.reshape(len(self.outputs), -1).astype(np.float64)
        table = self.preprocessing.table
        if table is None:
            return outputs
        columns = [own.unscaled(outputs[:, i]) for i, own in enumerate(table.targets)]
        return np.stack(columns, axis=1)

    @property
    def _names(self) -> list[str]:
        names, count = self.preprocessing.class_names, self.preprocessing.outputs
        return list(names) if names else [str(i) for i in range(max(2, count))]

    def columns(self) -> dict[str, list[Any]]:
        """All of it by column; None in the rows that were not used."""
        if self.preprocessing.task == "regression":
            table = self.preprocessing.table
            count = self.values.shape[1]
            names = table.target_names if table else [f"output-{i}" for i in range(count)]
            found = dict(zip(names, self.values.T, strict=True))
        else:
            found = {PREDICTION: self.labels}
            for name, share in zip(self._names, self.probabilities.T, strict=True):
                found[name if name != PREDICTION else f"{name} (class)"] = share
        return {
            **_apart(self.kept, found),
            **{key: self._spread(own) for key, own in found.items()},
        }

    def _spread(self, values: Array) -> list[Any]:
        spread: list[Any] = [None] * len(self.used)
        for row, value in zip(np.flatnonzero(self.used), values.tolist(), strict=True):
            spread[row] = value
        return spread

    def as_csv(self, delimiter: str = ",", decimal: str = ".") -> str:
        """The columns as text, with one row for each row of the table, in its order."""
        columns, text = self.columns(), io.StringIO()
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow([_cell(value, decimal) for value in row])
        return text.getvalue()

    def write(self, path: Path, delimiter: str = ",", decimal: str = ".") -> None:
        """The same as a file."""
        try:
            path.write_text(self.as_csv(delimiter, decimal), encoding="utf-8")
        except OSError as error:
            raise InvalidInput("out", f"cannot write {path}: {error.strerror}") from None


def _apart(kept: Mapping[str, Sequence[str]], found: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns of the table under other names than those of predictions."""
    return {f"{name} (given)" if name in found else name: list(own) for name, own in kept.items()}


def _cell(value: Any, decimal: str) -> str:
    if value is None:
        return ""
    return repr(value).replace(".", decimal) if isinstance(value, float) else str(value)
