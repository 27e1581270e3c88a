"""`udpfl plan`: how much noise a budget takes, and with which mechanism."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from udpfl.accounting import Accountant, Accounting, Norm
from udpfl.accounting.statement import shown
from udpfl.cli._options import DataDir, mechanism_option, overrides_of, set_option
from udpfl.cli._preview import show_preview
from udpfl.errors import InvalidInput, Unsupported
from udpfl.figures import dimensions, noise_figure
from udpfl.harmonizer import Rank, Setting
from udpfl.mechanisms import BUILT_IN
from udpfl.planning import Plan, PlanRow
from udpfl.planning import plan as make_plan


def plan(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Configuration file of a run: print what it would do, release and cost. It takes "
            "--set, --data-dir and --json only.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="How many times noise is released. Required without CONFIG.", show_default=False
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Budget: epsilon of all releases together. Required without --match.",
            show_default=False,
        ),
    ] = None,
    match: Annotated[
        float | None,
        typer.Option(
            metavar="STD",
            help="Match a Gaussian instead: find the smallest noise that leaks no more in any "
            "release. Its noise multiplier: standard deviation over clip, or with norm linf over "
            "clip times the root of the dimension.",
            show_default=False,
        ),
    ] = None,
    mechanism: Annotated[
        str,
        mechanism_option(
            "One mechanism, 'auto' for the best, 'all' for a ranking, or your own as module:Name.",
            "auto",
            "all",
        ),
    ] = "auto",
    delta: Annotated[
        float,
        typer.Option(
            help="Budget: delta of all releases together; 0 is pure DP with every accountant."
        ),
    ] = 1e-5,
    sampling_rate: Annotated[
        float, typer.Option(help="Probability that a record takes part in a release.")
    ] = 1.0,
    clip: Annotated[float, typer.Option(help="Bound on one record's gradient.")] = 1.0,
    norm: Annotated[Norm, typer.Option(help="Norm of the clip.")] = "l2",
    dimension: Annotated[
        int | None,
        typer.Option(
            help="Number of parameters. Required, except for Gaussian noise with norm l1 or l2.",
            show_default=False,
        ),
    ] = None,
    accounting: Annotated[
        Accounting,
        typer.Option(
            help="How noise is accounted: 'vector' gives a guarantee; 'scalar', as in the paper, "
            "is nominal only."
        ),
    ] = "vector",
    accountant: Annotated[
        Accountant,
        typer.Option(
            help="Rényi divergences, privacy-loss distributions, or 'best', the tighter of the "
            "two; with scalar accounting also 'paper', the paper's own."
        ),
    ] = "best",
    rank: Annotated[
        Rank, typer.Option(help="Rank by standard deviation (l2) or by mean absolute value (l1).")
    ] = "l2",
    json_: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw noise against epsilon for every mechanism to this file (png, svg or pdf).",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        set_option("With CONFIG: change one key, e.g. privacy.epsilon=2. May be repeated."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Find the smallest noise that keeps a privacy budget, and the mechanism that needs the least.

    With --match: the smallest noise that leaks no more than a Gaussian, release by release, and
    what all releases cost with each. With CONFIG: data, clients, noise, cost and time of that run;
    nothing is trained for anyone, written or charged.

    Examples:

    udpfl plan configs/mnist.toml --data-dir DATA

    udpfl plan --epsilon 8 --steps 300 --sampling-rate 0.05 --dimension 26010

    udpfl plan --mechanism all --epsilon 4 --steps 100 --dimension 10 --json

    udpfl plan --mechanism all --match 1.5 --steps 300 --dimension 10
    """
    if config is not None or set_ or data_dir:
        _refuse_options(steps, epsilon, match, dimension, plot)
        show_preview(config, overrides_of(set_, data_dir), json_)
        return
    if steps is None:
        raise InvalidInput("steps", "is needed: how many times noise is released. Or name a CONFIG")
    if epsilon is None and match is None:
        raise InvalidInput("epsilon", "is needed: the budget. Or name a Gaussian: --match STD")
    if plot is not None:
        check_plot(plot)
        if match is not None:
            raise InvalidInput("plot", "draws noise against epsilon: not available with --match")
    options: dict[str, Any] = {
        "steps": steps,
        "match": match,
        "delta": delta,
        "sampling_rate": sampling_rate,
        "clip": clip,
        "norm": norm,
        "dimension": dimension,
        "accounting": accounting,
        "accountant": accountant,
        "rank": rank,
    }
    try:
        rows = make_plan(mechanism, epsilon=epsilon, **options)
    except Unsupported as reason:
        blame = "" if accountant == "best" else f"--accountant {accountant} with "
        raise Unsupported(f"{blame}--mechanism {mechanism}: {reason}") from None
    if json_:
        typer.echo(json.dumps(rows.to_list(), indent=2))
    else:
        show(rows, Console())
    if plot is not None:
        _draw(plot, rows, options)


def _refuse_options(*given: object) -> None:
    """A configuration says itself what is released, and how often."""
    for name, value in zip(("steps", "epsilon", "match", "dimension", "plot"), given, strict=True):
        if value is not None:
            raise InvalidInput(
                name, "does not go with CONFIG, which says it itself; change its keys with --set"
            )


def _draw(plot: Path, rows: Plan, options: dict[str, Any]) -> None:
    """Write the figure of every built-in mechanism, and of the planned one if it is one's own."""
    own = [row.noise for row in rows if row.noise and row.mechanism not in BUILT_IN]
    with Console(stderr=True).status("calibrating every mechanism over a range of epsilon"):
        try:
            noise_figure(plot, rows.setting.epsilon, options, own)
        except OSError as error:
            raise InvalidInput("plot", f"cannot write {plot}: {error.strerror}") from None
    typer.echo(f"wrote {plot}", err=True)


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before the work for it."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidInput("plot", f"the file must end in .png, .svg or .pdf, got {path.name!r}")
    if not path.parent.is_dir():
        raise InvalidInput("plot", f"there is no folder {str(path.parent)!r}")


def show(rows: Plan, console: Console) -> None:
    """The plan as a table for people."""
    everything = [*rows] if rows.reference is None else [*rows, rows.reference]
    nominal = rows.setting.accounting == "scalar"
    console.print(_table(everything, rows.setting, nominal))
    for row in everything:
        values = "" if row.noise is None else f" ({row.noise.parameters_in_words(5)})"
        console.print(Text(row.mechanism, style="bold") + Text(f"{values}: {row.why}"))
    if rows.reference is not None:
        console.print(_ABOUT_MATCHING[rows.setting.accounting])
    if nominal:
        console.print(
            "[bold red]Nominal: scalar accounting, not a privacy guarantee.[/] "
            "The column 'guaranteed ε' shows what is proved for the whole gradient."
        )
    elif rows.best.statement is not None:
        console.print(Text(f"Guarantee: {rows.best.statement}."))
    console.print("The noise is rounded here; --json prints all digits.", style="dim")


_ABOUT_MATCHING: dict[Accounting, str] = {
    "vector": "Rényi ε: what all releases cost by Rényi divergences, computed in the same way for "
    "every noise; a matched noise never costs more than the reference. Other accountants know some "
    "noises better than others, so the column ε may rank them otherwise.",
    "scalar": "The noise is matched in one coordinate. Nominal Rényi ε: what all releases cost by "
    "Rényi divergences of one coordinate; there a matched noise never costs more than the "
    "reference. For the whole gradient it may: compare the column 'guaranteed ε'.",
}


def _table(rows: Sequence[PlanRow], setting: Setting, nominal: bool) -> Table:
    """One line for each row."""
    is_matched = setting.reference is not None
    table = Table(title=_title(setting), title_justify="left", title_style="bold")
    table.add_column("#", justify="right")
    table.add_column("mechanism", no_wrap=True)
    table.add_column("noise std", justify="right")
    table.add_column("mean |noise|", justify="right")
    table.add_column("nominal ε" if nominal else "ε", justify="right")
    if nominal:
        table.add_column("guaranteed ε", justify="right", style="bold red")
    table.add_column("by")
    if is_matched:
        table.add_column("nominal Rényi ε" if nominal else "Rényi ε", justify="right")
    for row in rows:
        if row.noise is None or row.statement is None:
            table.add_row("–", Text(row.mechanism), "impossible", style="dim")
            continue
        statement = row.statement
        cells = [f"{row.noise.noise_std:.4g}", f"{row.noise.mean_abs:.4g}"]
        cells.append(shown(statement.epsilon))
        if nominal:
            cells.append(shown(statement.vector_epsilon))
        cells.append(statement.accountant)
        if row.matched is not None:
            stands_for = row.matched.other if row.rank is None else row.matched.own
            cells.append(shown(stands_for.epsilon))
        table.add_row(str(row.rank or ""), Text(row.mechanism), *cells)
    return table


def _title(setting: Setting) -> str:
    sensitivity, reference = setting.sensitivity, setting.reference
    size = "" if sensitivity.dimension is None else f", {dimensions(sensitivity.dimension)}"
    word = "nominal " if setting.accounting == "scalar" else ""
    budget = "" if math.isinf(setting.epsilon) else f" for {word}ε ≤ {setting.epsilon:g}"
    matched = "" if reference is None else f" that matches a Gaussian of multiplier {reference:g}"
    many = "1 release" if setting.releases == 1 else f"{setting.releases:,} releases"
    return (
        f"Noise{matched}{budget}, δ = {setting.delta:g}: {many} at sampling "
        f"rate {setting.rate:g}, {sensitivity.norm} clip {sensitivity.bound:g}{size}"
    )
