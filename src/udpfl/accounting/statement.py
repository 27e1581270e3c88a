"""The privacy statement: the only form in which an epsilon leaves the accountant."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal, get_args

from udpfl.accounting.events import Neighbours, Unit
from udpfl.accounting.notebook import card
from udpfl.errors import InvalidInput

Kind = Literal["guarantee", "nominal", "none"]
Composition = Literal["fixed", "filter", "sum"]
"""By which theorem releases are put together: with settings that were fixed before the first of
them; by a filter of Rényi orders, or by a sum of pure epsilons, whatever decided about later ones.
"""
COMPOSITIONS: dict[Composition, str] = {
    "fixed": "for settings that were fixed before the first release",
    "filter": "whatever later settings depended on (Rényi orders and their shares of δ were fixed "
    "when the account was opened)",
    "sum": "whatever later settings depended on (pure epsilons are added up)",
}


_IN_WORDS: dict[Unit, str] = {
    "record": "record",
    "person": "person with all rows at a client,",
    "client": "client with all its records,",
}


def weakest_kind(statements: Iterable[PrivacyStatement]) -> Kind:
    """The kind that may be said of all of them together: nobody lends a guarantee to others."""
    weakest_first: tuple[Kind, ...] = ("none", "nominal", "guarantee")
    return min((statement.kind for statement in statements), key=weakest_first.index)


def shown(epsilon: float) -> str:
    """An epsilon for people: four digits, rounded up, so that what is printed holds as well."""
    if not math.isfinite(epsilon) or epsilon == 0:
        return f"{epsilon:g}"
    unit = Decimal(1).scaleb(math.floor(math.log10(epsilon)) - 3)
    rounded = Decimal(epsilon).quantize(unit, ROUND_CEILING)
    return f"{float(rounded):.4g}"


@dataclass(frozen=True)
class PrivacyStatement:
    """What is promised, to whom, and by which argument.

    kind "guarantee": proved for everyone. kind "nominal": the paper's scalar accounting, which
    bounds one coordinate and not the gradient; `vector_epsilon` is what really holds. kind "none":
    no privacy is claimed, whatever the numbers say.

    Raises:
        InvalidInput: It calls a number of the paper's own accountant a guarantee.

    Example:
        >>> from udpfl import PrivacyStatement
        >>> print(PrivacyStatement(2.0, 1e-5, "guarantee", "rdp"))
        (ε = 2, δ = 1e-05)-DP for one record added or removed, by the rdp accountant
    """

    epsilon: float
    """inf where nothing is promised."""
    delta: float
    """The probability with which epsilon need not hold."""
    kind: Kind
    """What it is worth: "guarantee", "nominal" or "none"."""
    accountant: str
    """Which accountant found epsilon."""
    unit: Unit = "record"
    """Whose presence is hidden: "record", "person" or "client"."""
    neighbours: Neighbours = "add-remove"
    """Whether that unit is added or removed, or replaced."""
    vector_epsilon: float = math.inf
    """What holds for the whole gradient; the same as `epsilon` for a guarantee."""
    assumptions: tuple[str, ...] = ()
    """What it takes for granted: "assumes that …"."""
    notes: tuple[str, ...] = ()
    """What else is to be known, and why something is not claimed."""
    composition: Composition = "fixed"
    """The theorem by which the releases are put together."""
    trusts_server: bool = False
    """Whether it holds against everyone but a server that is trusted to add the noise."""

    def __post_init__(self) -> None:
        if self.kind == "guarantee" and self.accountant == "paper":
            raise InvalidInput("statement.kind", "the paper's accountant guarantees nothing")

    @property
    def remarks(self) -> tuple[str, ...]:
        """Assumptions and notes."""
        return (*self.assumptions, *self.notes)

    def adding(
        self, *, assumptions: Iterable[str] = (), notes: Iterable[str] = ()
    ) -> PrivacyStatement:
        """The same with more remarks, each of them once."""
        return replace(
            self,
            assumptions=tuple(dict.fromkeys((*self.assumptions, *assumptions))),
            notes=tuple(dict.fromkeys((*self.notes, *notes))),
        )

    @classmethod
    def none(cls, reason: str) -> PrivacyStatement:
        """No claim at all, with the reason."""
        return cls(math.inf, 1.0, "none", "none", notes=(reason,))

    def __str__(self) -> str:
        if self.kind == "none":
            return "not private: " + "; ".join(self.notes)
        relation = {"add-remove": "added or removed", "replace-one": "replaced"}[self.neighbours]
        unit = _IN_WORDS[self.unit]
        assumed = "".join(f"; {own}" for own in self.assumptions)
        if self.kind == "nominal":
            return (
                f"nominal ε = {shown(self.epsilon)} (scalar accounting, not a privacy guarantee); "
                f"the guarantee is ε = {shown(self.vector_epsilon)} at δ = {self.delta:g}, "
                f"one {unit} {relation}{assumed}"
            )
        how = f", {COMPOSITIONS[self.composition]}" if self.composition == "filter" else ""
        return (
            f"(ε = {shown(self.epsilon)}, δ = {self.delta:g})-DP for one {unit} {relation}, "
            f"by the {self.accountant} accountant{how}{assumed}"
        )

    @property
    def short(self) -> str:
        """The number and what it is worth, in a few words."""
        if self.kind == "none":
            return "not private"
        said = f"ε = {shown(self.epsilon)} at δ = {self.delta:g} for one {self.unit}"
        if self.kind == "guarantee":
            return f"{said} (guarantee)"
        return f"nominal {said} (guaranteed: ε = {shown(self.vector_epsilon)})"

    def __repr__(self) -> str:
        return f"<PrivacyStatement: {self.short}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        if self.kind == "none":
            return card("Not private", self.kind, [("why", "; ".join(self.notes))])
        rows: list[tuple[str, object]] = [
            ("ε", shown(self.epsilon)),
            *([("guaranteed ε", shown(self.vector_epsilon))] if self.kind == "nominal" else []),
            ("δ", f"{self.delta:g}"),
            ("hides", f"one {self.unit}, {self.neighbours}"),
            ("accountant", self.accountant),
            *(("assumes", own.removeprefix("assumes that ")) for own in self.assumptions),
            *(("note", own) for own in self.notes),
        ]
        title = {"guarantee": "Guarantee", "nominal": "Nominal: not a guarantee"}[self.kind]
        return card(title, self.kind, rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: infinite numbers become the string "inf"."""
        plain = asdict(self)
        for key in ("assumptions", "notes"):
            plain[key] = list(plain[key])
        for key in ("epsilon", "vector_epsilon"):
            if math.isinf(plain[key]):
                plain[key] = "inf"
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PrivacyStatement:
        """The statement that `to_dict` wrote. A missing or unknown field is never guessed."""
        names = {field.name for field in fields(cls)}
        plain = _as_written_now(plain)
        if not isinstance(plain, Mapping) or plain.keys() ^ names:
            raise InvalidInput("statement", f"must have the fields {sorted(names)}, got {plain!r}")
        for name, choices in (
            ("kind", Kind),
            ("unit", Unit),
            ("neighbours", Neighbours),
            ("composition", Composition),
        ):
            if plain[name] not in get_args(choices):
                raise InvalidInput(
                    f"statement.{name}", f"must be one of {get_args(choices)}, got {plain[name]!r}"
                )
        numbers = {name: _number(name, plain[name]) for name in _NUMBERS}
        if not isinstance(plain["trusts_server"], bool):
            raise InvalidInput("statement.trusts_server", "must be true or false")
        if not isinstance(plain["accountant"], str):
            raise InvalidInput("statement.accountant", "must be text")
        said = {name: _texts(name, plain[name]) for name in ("assumptions", "notes")}
        return cls(**{**plain, **numbers, **said})


_NUMBERS = ("epsilon", "delta", "vector_epsilon")


def _number(name: str, value: Any) -> float:
    value = math.inf if value == "inf" else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value >= 0 or sys.float_info.max < value < math.inf:
        raise InvalidInput(f"statement.{name}", f"must be a number >= 0, got {str(value)[:40]!r}")
    return float(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(own, str) for own in value):
        raise InvalidInput(f"statement.{name}", "must be a list of text")
    return tuple(value)


_TRUSTED_SERVER = "assumes a server that adds the noise"
"""How the assumption begins by which earlier versions said that the server is trusted."""


def _as_written_now(plain: Any) -> Any:
    """A statement of an earlier version with the fields that it did not have."""
    if not isinstance(plain, Mapping):
        return plain
    if "composition" not in plain:
        plain = {**plain, "composition": "fixed"}  # as all were, before there were others
    if "assumptions" not in plain and "notes" in plain:
        # They were among the notes. All of these are shown as assumptions, so that none is lost.
        assumed = [] if plain.get("kind") == "none" else plain["notes"]
        notes = plain["notes"] if plain.get("kind") == "none" else []
        plain = {**plain, "assumptions": assumed, "notes": notes}
    if "trusts_server" not in plain and "assumptions" in plain:
        trusted = any(str(own).startswith(_TRUSTED_SERVER) for own in plain["assumptions"])
        plain = {**plain, "trusts_server": trusted}
    return plain


def largest(statements: Iterable[PrivacyStatement]) -> PrivacyStatement:
    """One statement that holds for all: the largest epsilon at the largest delta."""
    everyone = list(statements)
    kind = weakest_kind(everyone)
    worst = max((s for s in everyone if s.kind == kind), key=lambda s: s.epsilon)
    if kind == "none":
        return worst
    return replace(
        worst,
        epsilon=max(statement.epsilon for statement in everyone),
        delta=max(statement.delta for statement in everyone),
        vector_epsilon=max(statement.vector_epsilon for statement in everyone),
        trusts_server=any(statement.trusts_server for statement in everyone),
    )
