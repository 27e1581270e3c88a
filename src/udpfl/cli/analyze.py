"""`udpfl analyze`: curves between models, convergence beside its bound, errors of the noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from udpfl.accounting import Accounting
from udpfl.cli import _analyze_tables as tables
from udpfl.cli._options import Trust, mechanism_option, trust_all
from udpfl.cli.plan import check_plot
from udpfl.errors import InvalidInput
from udpfl.planning import plan

if TYPE_CHECKING:
    from udpfl.analysis.between_runs import Connection

analyze = typer.Typer(
    name="analyze",
    help="Measure curves between models, convergence against its bound, and errors of the noise.",
)

Json = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw the result to this file (png, svg or pdf).", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random draw.")]
Delta = Annotated[float, typer.Option(help="Budget: delta of all releases together.")]
Rate = Annotated[float, typer.Option(help="Probability that a record takes part in a step.")]
Dimension = Annotated[int, typer.Option(help="Number of parameters.")]


@analyze.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@analyze.command()
def curve(
    run_a: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    run_b: Annotated[
        Path, typer.Argument(help="Folder of another finished run with the same architecture.")
    ],
    curve: Annotated[
        Literal["bezier", "chain"],
        typer.Option(help="A quadratic Bezier curve, or a chain of two line segments."),
    ] = "bezier",
    steps: Annotated[int, typer.Option(help="Largest number of steps of the search.")] = 1000,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the search.")] = 0.01,
    batch: Annotated[int, typer.Option(help="Records in each step of the search.")] = 128,
    points: Annotated[int, typer.Option(help="Number of points of the curve to measure.")] = 21,
    at: Annotated[
        float | None,
        typer.Option(help="Point of the curve to save, from 0 to 1.", show_default=False),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Safetensors file for the model at --at.", show_default=False),
    ] = None,
    seed: Seed = 0,
    trust: Trust = None,
    json_: Json = False,
    plot: Plot = None,
) -> None:
    """Train a curve of low loss between the models of two runs, and measure the loss along it.

    The barrier is the largest rise of the loss above the straight line between the losses of the
    two models. Only records that no client of either run held are used.

    Examples:

    udpfl analyze curve runs/first runs/second --plot curve.png

    udpfl analyze curve runs/first runs/second --at 0.5 --save middle.safetensors
    """
    from udpfl.algorithms.curves import Search
    from udpfl.analysis.between_runs import connect
    from udpfl.analysis.figures import curve_figure

    if (at is None) != (save is None):
        raise InvalidInput("at" if at is None else "save", "--at and --save go together")
    if at is not None and not 0 <= at <= 1:
        raise InvalidInput("at", f"must lie between 0 and 1, got {at}")
    if plot is not None:
        check_plot(plot)
    trust_all(trust)
    search = Search(steps, learning_rate, batch)
    with Console(stderr=True).status("training the curve"):
        found = connect(run_a, run_b, curve, search=search, points=points, seed=seed)
    show(found.to_dict(), lambda: tables.curve(found), json_)
    if at is not None and save is not None:
        _save(found, at, save)
    draw(curve_figure, found, plot)


def _save(found: Connection, at: float, path: Path) -> None:
    """Write the model at one point of the curve."""
    from udpfl.algorithms.message import tensors_to_bytes

    try:
        path.write_bytes(tensors_to_bytes(found.at(at), found.stamp(at)))
    except OSError as error:
        raise InvalidInput("save", f"cannot write {path}: {error.strerror}") from None
    typer.echo(f"wrote {path}", err=True)


@analyze.command()
def error(
    epsilon: Annotated[float, typer.Option(help="Budget: epsilon of all releases together.")],
    rounds: Annotated[int, typer.Option(help="How many times noise is released.")],
    dimension: Dimension,
    mechanism: Annotated[str, mechanism_option("The noise.", "all")] = "all",
    delta: Delta = 1e-5,
    sampling_rate: Rate = 1.0,
    clip: Annotated[float, typer.Option(help="Bound on one record's gradient.")] = 1.0,
    accounting: Annotated[
        Accounting,
        typer.Option(
            help="How noise is accounted: 'vector' gives a guarantee; 'scalar', as in the paper, "
            "is nominal only."
        ),
    ] = "vector",
    scale: Annotated[
        float,
        typer.Option(
            help="Factor by which noise enters the model: learning rate / (sampling rate × "
            "declared size)."
        ),
    ] = 1.0,
    trials: Annotated[int, typer.Option(help="Number of coordinates to draw.")] = 4000,
    seed: Seed = 0,
    json_: Json = False,
    plot: Plot = None,
) -> None:
    """Compare the sum of the l1 errors of all releases with the l1 error of the resulting model.

    After T releases the sum, which the paper reports, grows like T; the error of the model grows
    like the square root of T.

    Examples:

    udpfl analyze error --epsilon 8 --rounds 300 --dimension 26010

    udpfl analyze error --epsilon 4 --rounds 100 --dimension 10 --plot error.png
    """
    from udpfl.analysis.errors import errors, milestones
    from udpfl.analysis.figures import error_figure

    if plot is not None:
        check_plot(plot)
    places = milestones(rounds)
    planned = plan(
        mechanism, epsilon=epsilon, steps=rounds, delta=delta, sampling_rate=sampling_rate,
        clip=clip, dimension=dimension, accounting=accounting,
    )  # fmt: skip
    found = {
        row.mechanism: errors(
            row.noise, places, dimension=dimension, scale=scale, trials=trials, seed=seed
        )
        for row in planned
        if row.noise is not None
    }
    plain: list[dict[str, Any]] = [
        {**row.to_dict(), "errors": [each.to_dict() for each in found[row.mechanism]]}
        for row in planned
        if row.mechanism in found
    ]
    show(plain, lambda: tables.errors(planned, found, accounting), json_)
    styles = {row.mechanism: row.noise.plot_style for row in planned if row.noise is not None}
    draw(lambda rows, path: error_figure(rows, styles, path), found, plot)


def show(plain: Any, print_tables: Callable[[], None], json_: bool) -> None:
    """Print numbers as JSON, or tables for people."""
    if json_:
        typer.echo(json.dumps(plain, indent=2))
    else:
        print_tables()


def draw(figure: Callable[[Any, Path], None], found: Any, plot: Path | None) -> None:
    """Write the figure of what was found, where one is wanted."""
    if plot is not None:
        figure(found, plot)
        typer.echo(f"wrote {plot}", err=True)
