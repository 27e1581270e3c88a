"""What the sections of a configuration are made of: the kinds of values, and the shared rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from udpfl.config.unused import unused_keys
from udpfl.errors import InvalidInput, WrongKey


def _plain(value: Any) -> Any:
    """The value with tuples as lists; refuses what TOML cannot write and read back."""
    match value:
        case bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
    raise ValueError(f"may hold text, numbers, true/false, lists and tables, got {value!r}")


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Several = Field(min_length=1)
Options = Annotated[dict[str, Any], AfterValidator(_plain)]
Metric = Literal["accuracy", "loss", "mae", "mse", "rmse"]
"""A figure of the model on the test records."""
Goal = Annotated[dict[Metric, float], Field(min_length=1, max_length=1)]
"""One metric, and the value that it has to reach."""


class Section(BaseModel):
    """What all sections share: no unknown keys, no guessing of types, no change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Keys that are wrong only together with others, and why."""
        yield from ()

    def _unused(self, name: str) -> Iterator[tuple[str, str]]:
        """Keys of this section, called `name`, that were changed and have no effect."""
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        yield from unused_keys(name, dict(self), defaults)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := list(self._problems()):
            raise refusal(problems)
        return self


def refusal(problems: Iterable[tuple[str, str]]) -> InvalidInput:
    """All problems in one error, under the name of the first."""
    every = tuple(problems)
    (key, message), *others = every
    error = WrongKey(key, "; ".join([message, *(f"{k}: {why}" for k, why in others)]))
    error.problems = every
    return error
