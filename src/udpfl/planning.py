"""`udpfl.plan`: from a budget to a ranked table of noises, in one call."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from udpfl.accounting import (
    Accountant,
    Accounting,
    Norm,
    PrivacyStatement,
    Sensitivity,
    account,
)
from udpfl.accounting.statement import shown
from udpfl.errors import InvalidInput, Unsupported
from udpfl.harmonizer import Choice, Matched, Rank, Setting, choose, ranked
from udpfl.mechanisms import BUILT_IN, Gaussian, Mechanism
from udpfl.plugins import offered, own_mechanism


@dataclass(frozen=True, repr=False)
class PlanRow:
    """One mechanism: its noise and what that guarantees, or the error that rules it out."""

    mechanism: str
    """Its name."""
    rank: int | None
    """Its place, the first is 1; None where it is impossible."""
    noise: Mechanism | None
    """With its scale; None where it is impossible."""
    statement: PrivacyStatement | None
    """What all steps together cost; None where it is impossible."""
    why: str
    """The reason for its place, or what rules it out."""
    matched: Matched | None = None
    """What it was matched to, if it was."""

    def __repr__(self) -> str:
        if self.noise is None or self.statement is None:
            return f"<PlanRow: {self.mechanism}, impossible: {self.why}>"
        place = "" if self.rank is None else f"{self.rank}. "
        noise = f"noise std {self.noise.noise_std:.4g}"
        return f"<PlanRow: {place}{self.mechanism}, {noise}, {_cost(self)}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite numbers are the string "inf", missing ones null."""
        row: dict[str, Any] = dict.fromkeys(
            ("parameters", "noise_std", "mean_abs", "epsilon", "delta", "kind", "vector_epsilon",
             "accountant", "unit", "neighbours")
        )  # fmt: skip
        if self.noise is not None and self.statement is not None:
            row |= {k: v for k, v in self.statement.to_dict().items() if k in row}
            row["parameters"] = {k: float(v) for k, v in self.noise.parameters.items()}
            row["noise_std"], row["mean_abs"] = self.noise.noise_std, self.noise.mean_abs
            extra: dict[str, Any] = {"why": self.why}
        else:
            extra = {"error": self.why}
        if self.matched is not None:
            extra["matched"] = self.matched.to_dict()
        finite = {k: "inf" if v == math.inf else v for k, v in row.items()}
        return {"mechanism": self.mechanism, "rank": self.rank, **finite, **extra}


@dataclass(frozen=True, repr=False)
class Plan(Sequence[PlanRow]):
    """Rows in rank order, impossible mechanisms last.

    Example:
        >>> from udpfl import plan
        >>> [row.mechanism for row in plan("all", epsilon=2, steps=10, dimension=100)][0]
        'gaussian'
    """

    rows: tuple[PlanRow, ...]
    """One for each mechanism."""
    setting: Setting
    """What they were calibrated for."""
    reference: PlanRow | None = None
    """The Gaussian that they were matched to; None where they keep a budget."""

    @property
    def best(self) -> PlanRow:
        """The first row."""
        return self.rows[0]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[PlanRow]:
        return iter(self.rows)

    def __repr__(self) -> str:
        best, count = self.best, len(self)
        others = "" if count == 1 else f", best of {count}"
        if best.noise is None or best.statement is None:
            return f"<Plan: impossible, {best.why}>"
        return (
            f"<Plan: {best.mechanism}{others}, noise std {best.noise.noise_std:.4g}, {_cost(best)}>"
        )

    def _repr_html_(self) -> str:
        """The table that notebooks show."""
        everything = [*self.rows] if self.reference is None else [*self.rows, self.reference]
        head = "".join(
            f"<th>{name}</th>" for name in ("#", "mechanism", "noise std", "cost", "why")
        )
        body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in everything)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_list(self) -> list[dict[str, Any]]:
        """The rows as plain data, ready for JSON; last the reference, if there is one."""
        reference = () if self.reference is None else (self.reference,)
        return [row.to_dict() for row in (*self.rows, *reference)]


def plan(
    mechanism: str | Mechanism | Sequence[str | Mechanism] = "auto",
    *,
    steps: int,
    epsilon: float | None = None,
    match: float | None = None,
    delta: float = 1e-5,
    sampling_rate: float = 1.0,
    clip: float = 1.0,
    norm: Norm = "l2",
    dimension: int | None = None,
    accounting: Accounting = "vector",
    accountant: Accountant = "best",
    rank: Rank = "l2",
) -> Plan:
    """The smallest noise per mechanism that keeps (epsilon, delta) over `steps` releases.

    With `match` it is the smallest whose Rényi divergence, release by release, is at no order above
    that of a Gaussian.

    Args:
        mechanism: The name of a built-in one, "all" (a ranking of those), "auto" (its
            first row), a mechanism of your own, as an instance or by its place
            ("package.module:Name"), or a list of them to rank.
        steps: How many releases there are.
        epsilon: Of the budget, above 0; needed without `match`, which makes it a bound that the
            matched noise must not exceed.
        match: Noise multiplier of the Gaussian to match: its standard deviation over the clip
            (over the largest l2 norm of a clipped gradient, if `norm` is "linf").
        delta: Of the budget; 0 asks for pure DP.
        sampling_rate: Probability with which a record takes part in a step.
        clip: Bound on one record's gradient, in `norm`.
        norm: "l1", "l2" or "linf".
        dimension: Number of coordinates; may be left out for Gaussian noise under l1 or l2.
        accounting: "vector", or "scalar" for the paper's nominal number.
        accountant: "rdp", "pld", "best", or with scalar accounting "paper", the paper's own.
        rank: The error to rank by: "l2" (root mean square) or "l1" (mean absolute).

    Returns:
        The rows in rank order; `best` is the first.

    Raises:
        InvalidInput: A value makes no sense, or the dimension is missing.
        Unsupported: The only mechanism asked for cannot do it.

    Example:
        >>> import udpfl
        >>> best = udpfl.plan("gaussian", epsilon=2, steps=1000, sampling_rate=0.01).best
        >>> round(best.noise.noise_std, 2)
        0.96
    """
    if epsilon is None and match is None:
        raise InvalidInput("epsilon", "is needed: the budget, unless `match` names a Gaussian")
    setting = Setting(
        math.inf if epsilon is None else epsilon, delta, steps, Sensitivity(clip, norm, dimension),
        sampling_rate, "record", accountant, accounting, reference=match,
    )  # fmt: skip
    rows = tuple(_row(i, own) for i, own in enumerate(_choices(mechanism, setting, rank), 1))
    return Plan(rows, setting, None if match is None else _reference(setting, match))


def _choices(
    mechanism: str | Mechanism | Sequence[str | Mechanism], setting: Setting, rank: Rank
) -> Sequence[Choice]:
    """What was asked for, in rank order; raises where that is one mechanism which cannot do it."""
    wanted, sensitivity = _wanted(mechanism), setting.sensitivity
    if sensitivity.norm == "linf" or not all(map(_is_isotropic, wanted)):
        _ = sensitivity.coordinates  # raises where the dimension is needed and missing
    choices = choose(setting, wanted, rank)
    is_ranking = mechanism == "all" or not isinstance(mechanism, (str, Mechanism))
    if choices[0].calibrated is None and not is_ranking:
        raise Unsupported(choices[0].why)
    return choices[:1] if mechanism == "auto" else choices


def _wanted(mechanism: str | Mechanism | Sequence[str | Mechanism]) -> tuple[str | Mechanism, ...]:
    """The mechanisms to rank: names of built-in ones, and one's own."""
    if isinstance(mechanism, (list, tuple)) and mechanism:
        return tuple(map(_known, mechanism))
    return tuple(ranked()) if mechanism in ("auto", "all") else (_known(mechanism),)


def _known(mechanism: Any) -> str | Mechanism:
    """The name of a built-in mechanism, or one's own."""
    if isinstance(mechanism, Mechanism):
        return mechanism
    if isinstance(mechanism, str) and mechanism in BUILT_IN:
        return mechanism
    if not isinstance(mechanism, str) or (
        ":" not in mechanism and mechanism not in offered("mechanisms")
    ):
        names = ", ".join([*BUILT_IN, "auto", "all"])
        raise InvalidInput(
            "mechanism", f"must be one of {names}, or package.module:Name, got {mechanism!r}"
        )
    try:
        return own_mechanism(mechanism)
    except InvalidInput as error:  # which names a key of a configuration
        raise InvalidInput("mechanism", error.message) from None


def _cost(row: PlanRow) -> str:
    """What all steps cost, in a few words that do not hide a nominal number."""
    assert row.statement is not None
    word = "" if row.statement.kind == "guarantee" else f"{row.statement.kind} "
    return f"{word}ε {shown(row.statement.epsilon)} at δ = {row.statement.delta:g}"


def _cells(row: PlanRow) -> Iterator[str]:
    """One line of the table in a notebook."""
    yield f"<td>{row.rank or ''}</td>"
    yield f"<td>{html.escape(row.mechanism)}</td>"
    if row.noise is None or row.statement is None:
        yield "<td>impossible</td><td></td>"
    else:
        yield f"<td>{row.noise.noise_std:.4g}</td><td>{html.escape(_cost(row))}</td>"
    yield f'<td style="text-align:left">{html.escape(row.why)}</td>'


def _is_isotropic(mechanism: str | Mechanism) -> bool:
    return (BUILT_IN[mechanism] if isinstance(mechanism, str) else mechanism).is_isotropic


def _row(place: int, choice: Choice) -> PlanRow:
    found = choice.calibrated
    if found is None:
        return PlanRow(choice.name, None, None, None, choice.why)
    is_matched = found.setting.reference is not None
    matched = Matched.of(found.mechanism, found.setting) if is_matched else None
    return PlanRow(choice.name, place, found.mechanism, found.statement, choice.why, matched)


def _reference(setting: Setting, multiplier: float) -> PlanRow:
    noise = Gaussian(setting.reference_noise(multiplier).std)
    cost = account(setting.event(noise), setting.delta, setting.accountant, setting.accounting)
    why = f"the Gaussian with noise multiplier {multiplier:g} that the others match"
    return PlanRow("reference", None, noise, cost, why, Matched.of(noise, setting))
