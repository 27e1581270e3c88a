"""What `udpfl analyze` prints for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from udpfl.accounting import Accounting
from udpfl.planning import Plan

if TYPE_CHECKING:
    from udpfl.algorithms.curves import Ending
    from udpfl.analysis.between_runs import Connection
    from udpfl.analysis.curve_rounds import CurveStudy
    from udpfl.analysis.errors import ErrorRow
    from udpfl.analysis.extra_rounds import NetworkCurve, Study


_ENDINGS: dict[Ending, str] = {
    "converged": "converged",
    "steps": "not converged: it used all of --steps",
    "not finite": "not converged: the loss became infinite or NaN; try a smaller --learning-rate",
}


def curve(found: Connection) -> None:
    """Both ways from one model to the other."""
    kind = found.found.curve.kind
    table = _table(
        "Along the line and the curve", "p", "line: loss", "accuracy", f"{kind}: loss", "accuracy"
    )
    for p, line, trained in zip(
        found.line.places, found.line.values, found.curve.values, strict=True
    ):
        cells = [f"{p:.2f}"]
        for value in (line, trained):
            cells += [f"{value.loss:.4f}", _share(value.accuracy)]
        table.add_row(*cells)
    Console().print(table)
    typer.echo(f"barrier: {found.line.barrier:.4f} straight, {found.curve.barrier:.4f} curved")
    typer.echo(f"search: {found.found.steps} steps, {_ENDINGS[found.found.ended]}")
    typer.echo(found.records)


def study(found: Study, title: str) -> None:
    """The bound beside the measurement, at every level of noise."""
    c = found.levels[0].constants
    typer.echo(
        f"L = {c.smoothness:.4g}, mu = {c.convexity:.4g}, Gamma = {c.heterogeneity:.4g}; without "
        f"noise the largest sigma_k² = {max(c.sampling):.4g} and G² = {c.gradient:.4g}"
    )
    columns = ("× Var", "d·Var", "B", "E|w−w*|²", "bound", "steps", "bound", "above")
    table = _table(title, *columns)
    rows = zip(found.factors, found.levels, found.measured, found.bounds, strict=True)
    for factor, level, steps, bound in rows:
        constants = level.constants
        figures = (constants.noise, constants.drift, level.distances[-1], level.bound[-1])
        table.add_row(
            f"{factor:g}", *(f"{figure:.3g}" for figure in figures), f"{steps:,}",
            f"{bound:,.0f}", str(level.violations()),
        )  # fmt: skip
    Console().print(table)
    typer.echo(f"steps: until E|w−w*|² is {found.target:.3g}, where the noisiest training ended")
    typer.echo(
        "above: steps whose measured distance exceeds the recursion by over four standard errors"
    )
    lines = found.to_dict()
    for name in ("measured", "bound"):
        line = lines[f"{name}_line"]
        typer.echo(
            f"{name}: {line['slope']:,.4g} steps for each unit of variance; the straight line fits "
            f"with R² = {line['r_squared']:.4f}"
        )
    _note_clip(max(level.steepest for level in found.levels))


def _note_clip(steepest: float) -> None:
    """Say so where gradients are longer than the clip that the noise is calibrated for."""
    if steepest > 1:
        typer.echo(
            f"note: record gradients reach a norm of {steepest:.3g}. The noise is calibrated for a "
            "clip of 1, which would change this training; the theory does not cover clipping"
        )


def curve_study(found: CurveStudy, title: str) -> None:
    """Distances along curves and rounds to a target, beside both bounds."""
    from udpfl.analysis.curve_rounds import MOST

    plain = found.to_dict()
    rows, c = plain["levels"], found.levels[0].measured.bound.constants
    walk = found.levels[0].measured.bound.walk
    typer.echo(
        f"L = {c.smoothness:.4g}, mu = {c.convexity:.4g}, Gamma = {c.heterogeneity:.4g}; "
        f"theta = w + {walk.reach:.4g} (v − w); w moves by {walk.mean:.4g} (v − w) in the mean, "
        f"with a variance of {walk.variance:.4g}"
    )
    ends = _table(
        f"{title}: squared distances to w* after the last round", "noise", "× Var", "d·Var",
        "(E|X|)²", "w", "bound", "printed", "above", "theta", "bound",
    )  # fmt: skip
    waits = _table(
        f"Rounds until w stays within {found.target:.3g}", "noise", "d·Var", "rounds", "extra",
        "bound", "extra", "printed", "extra",
    )  # fmt: skip
    beyond = "never" if found.grows == "distance" else f"over {MOST:,}"
    for row in rows:
        bound, printed, name = row["bound"], row["printed"], row["mechanism"] or "none"
        figures = (bound["noise"], printed["noise"], row["distance"], bound["distance"])
        ends.add_row(
            name, f"{row['factor']:g}", *(f"{figure:.3g}" for figure in figures),
            f"{printed['distance']:.3g}", f"{bound['above']}, {printed['above']}",
            f"{row['theta']:.3g}", f"{bound['theta']:.3g}",
        )  # fmt: skip
        cells = [name, f"{bound['noise']:.3g}"]
        cells += _rounds(row["rounds"], rows[0]["rounds"], f"over {found.rounds:,}")
        for own, quiet in ((row[name], rows[0][name]) for name in ("bound", "printed")):
            cells += _rounds(own["rounds"], quiet["rounds"], beyond)
        waits.add_row(*cells)
    Console().print(ends)
    Console().print(waits)
    typer.echo(
        "above: rounds whose measured distance exceeds the bound, and the printed one, by over "
        "four standard errors"
    )
    units = {"rounds": "rounds", "distance": "of E|w−w*|²"}[found.grows]
    for name in ("measured", "bound", "printed"):
        if (line := plain[f"{name}_line"]) is not None:
            typer.echo(
                f"{name}: {line['slope']:,.4g} {units} for each unit of variance; one line through "
                f"all mechanisms fits with R² = {line['r_squared']:.4f}"
            )
    _note_clip(max(level.measured.steepest for level in found.levels))


def _rounds(own: float | None, without: float | None, beyond: str) -> list[str]:
    """So many rounds, and how many more than without noise; or the words for too many."""
    if own is None:
        return [beyond, "–"]
    return [f"{own:,.0f}", "–" if without is None else f"{own - without:,.0f}"]


def networks(curves: Sequence[NetworkCurve]) -> None:
    """Real runs, as far as they came."""
    target = max(min(each.losses) for each in curves)
    title = "Measured only: no bound holds for a network"
    table = _table(
        title, "run", "noise std", "d·Var", "rounds", "extra", "last loss", "last accuracy"
    )
    without = curves[0].rounds_to(target)
    for each in curves:
        table.add_row(
            Text(each.name), f"{each.noise_std:.4g}", f"{each.variance:.4g}",
            *_rounds(each.rounds_to(target), without, "–"), f"{each.losses[-1]:.4f}",
            _share(each.accuracies[-1]),
        )  # fmt: skip
    Console().print(table)
    typer.echo(f"rounds: until the test loss is {target:.4f}, the lowest that all runs reached")
    typer.echo(
        "these runs were not kept and no client was charged; the first one is not private: use "
        "this command with public data only"
    )


def errors(planned: Plan, found: Mapping[str, Sequence[ErrorRow]], accounting: Accounting) -> None:
    """Both errors of every mechanism."""
    kind = "nominal ε" if accounting == "scalar" else "ε"
    for row in planned:
        if row.noise is None:
            typer.echo(f"{row.mechanism}: impossible: {row.why}")
            continue
        table = _table(
            f"{row.mechanism} noise of std {row.noise.noise_std:.4g}, {kind} ≤ "
            f"{planned.setting.epsilon:g}: summed error, and error of the model",
            "releases", "T·d·E|X|", "sampled", "d·√(2T·Var/π)", "sampled", "±",
        )  # fmt: skip
        for each in found[row.mechanism]:
            figures = (
                each.summed, each.summed_sampled, each.accumulated, each.accumulated_sampled,
                each.accumulated_spread,
            )  # fmt: skip
            table.add_row(f"{each.releases:,}", *(f"{figure:,.4g}" for figure in figures))
        Console().print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in ("run", "noise") else "right")
    return table


def _share(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.3f}"
