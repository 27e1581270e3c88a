"""preprocessing.json: what a record has to become before the model, and what its outputs mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from udpfl.data.columns import Schema
from udpfl.data.records import DataSet, Task
from udpfl.errors import InvalidInput


@dataclass(frozen=True)
class Preprocessing:
    """All that it takes to use a trained model on new records; nothing of it is private."""

    input_shape: tuple[int, ...]
    """Of one record."""
    input_type: str
    """"float32", or "int64" for token ids."""
    outputs: int
    """Numbers that the model answers with."""
    task: Task
    """Either "classification" or "regression"."""
    class_names: tuple[str, ...] | None = None
    """What the labels are called; None for regression, and where they have no names."""
    table: Schema | None = None
    """How the cells of a table become inputs: columns, scale, categories, labels."""

    @classmethod
    def of(cls, data: DataSet) -> Preprocessing:
        """That of a data set."""
        return cls(
            input_shape=data.input_shape,
            input_type=str(data.train.inputs.dtype),
            outputs=data.outputs,
            task=data.task,
            class_names=data.class_names,
            table=data.schema,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "input_shape": list(self.input_shape),
            "input_type": self.input_type,
            "outputs": self.outputs,
            "task": self.task,
            "class_names": None if self.class_names is None else list(self.class_names),
            "table": None if self.table is None else self.table.to_dict(),
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Preprocessing:
        """The inverse of `to_dict`."""
        if not isinstance(plain, Mapping):
            raise InvalidInput("preprocessing", f"must be an object, got {plain!r}")
        try:
            names = plain["class_names"]
            return cls(
                input_shape=tuple(int(size) for size in plain["input_shape"]),
                input_type=str(plain["input_type"]),
                outputs=int(plain["outputs"]),
                task=plain["task"],
                class_names=None if names is None else tuple(map(str, names)),
                table=None if plain["table"] is None else Schema.from_dict(plain["table"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput("preprocessing", f"cannot be used: {error!r}") from None
