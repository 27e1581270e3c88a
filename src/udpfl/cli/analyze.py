"""`udpfl analyze`: curves between models, convergence beside its bound, errors of the noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from udpfl.accounting import Accounting
from udpfl.cli import analyze_tables as tables
from udpfl.cli.options import Trust, mechanism_option, trust_all
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
    if json_:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        tables.curve(found)
    if at is not None and save is not None:
        _save(found, at, save)
    _draw(curve_figure, found, plot)


def _save(found: Connection, at: float, path: Path) -> None:
    """Write the model at one point of the curve."""
    from udpfl.algorithms.message import tensors_to_bytes

    try:
        path.write_bytes(tensors_to_bytes(found.at(at), found.stamp(at)))
    except OSError as error:
        raise InvalidInput("save", f"cannot write {path}: {error.strerror}") from None
    typer.echo(f"wrote {path}", err=True)


@analyze.command()
def convergence(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Train the network of this configuration instead of a built-in problem."
        ),
    ] = None,
    problem: Annotated[
        Literal["quadratic", "logistic"],
        typer.Option(help="Least squares or logistic regression, both with an l2 penalty."),
    ] = "quadratic",
    mechanism: Annotated[str, mechanism_option("The noise.")] = "gaussian",
    epsilon: Annotated[
        list[float] | None,
        typer.Option(
            help="Budget that the noise is calibrated to; 8 if not set. With a configuration it "
            "may be repeated: one run for each value.",
            show_default=False,
        ),
    ] = None,
    delta: Delta = 1e-5,
    rounds: Annotated[
        int, typer.Option(help="Number of rounds; each averages over all clients.")
    ] = 1000,
    local_steps: Annotated[int, typer.Option(help="Steps of each client in a round.")] = 1,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 5,
    records: Annotated[int, typer.Option(help="Records of each client.")] = 100,
    dimension: Annotated[int, typer.Option(help="Number of parameters.")] = 10,
    sampling_rate: Rate = 0.5,
    repetitions: Annotated[int, typer.Option(help="Number of trainings to average over.")] = 50,
    seed: Seed = 0,
    json_: Json = False,
    plot: Plot = None,
) -> None:
    """Compare the convergence bound of federated averaging with trainings at five noise levels.

    On a strongly convex problem every constant of the bound is computed or measured. There is no
    such bound for a network: a configuration is trained as it is, and only the measured curves are
    shown.

    Examples:

    udpfl analyze convergence --problem logistic --plot convergence.png

    udpfl analyze convergence configs/default.toml --epsilon 2 --epsilon 8
    """
    from udpfl.analysis.convex import Convex
    from udpfl.analysis.extra_rounds import study
    from udpfl.analysis.figures import convergence_figure

    if plot is not None:
        check_plot(plot)
    if config is not None:
        _only(context, {"config", "epsilon", "json_", "plot"})
        _networks(config, epsilon or [], json_, plot)
        return
    if epsilon and len(epsilon) > 1:
        raise InvalidInput(
            "epsilon", "takes one value; several are possible only with a configuration"
        )
    posed = Convex.drawn(problem, clients=clients, records=records, dimension=dimension, seed=seed)
    budget = epsilon[0] if epsilon else 8.0
    noise = plan(
        mechanism, epsilon=budget, delta=delta, steps=rounds * local_steps,
        sampling_rate=sampling_rate, dimension=dimension,
    ).best.noise  # fmt: skip
    assert noise is not None
    with Console(stderr=True).status("training at five levels of noise"):
        found = study(
            posed, noise, 1 / (sampling_rate * records), local_steps=local_steps,
            rate=sampling_rate, steps=rounds * local_steps, repetitions=repetitions, seed=seed,
        )  # fmt: skip
    if json_:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        tables.study(found, f"{problem}, {mechanism} noise for ε = {budget:g} and its multiples")
    _draw(convergence_figure, found, plot)


def _networks(config: Path, epsilons: Sequence[float], json_: bool, plot: Path | None) -> None:
    """Measured curves of a configuration's network, without noise and within each epsilon."""
    from udpfl.analysis.extra_rounds import network_curves
    from udpfl.analysis.figures import network_figure
    from udpfl.config import load

    with Console(stderr=True).status("training, without noise and within each epsilon"):
        curves = network_curves(load(config), epsilons)
    if json_:
        typer.echo(json.dumps([each.to_dict() for each in curves], indent=2))
    else:
        tables.networks(curves)
    _draw(network_figure, curves, plot)


def _only(context: typer.Context, allowed: set[str]) -> None:
    """Refuse options that a configuration answers itself."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            raise InvalidInput(
                name, "is an option of the built-in problems; remove it, the configuration decides"
            )


@analyze.command()
def error(
    epsilon: Annotated[float, typer.Option(help="Budget: epsilon of all releases together.")],
    rounds: Annotated[int, typer.Option(help="How many times noise is released.")],
    dimension: Annotated[int, typer.Option(help="Number of parameters.")],
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
    if json_:
        plain: list[dict[str, Any]] = [
            {**row.to_dict(), "errors": [each.to_dict() for each in found[row.mechanism]]}
            for row in planned
            if row.mechanism in found
        ]
        typer.echo(json.dumps(plain, indent=2))
    else:
        tables.errors(planned, found, accounting)
    styles = {row.mechanism: row.noise.plot_style for row in planned if row.noise is not None}
    _draw(lambda rows, path: error_figure(rows, styles, path), found, plot)


def _draw(figure: Callable[[Any, Path], None], found: Any, plot: Path | None) -> None:
    """Write the figure of what was found, where one is wanted."""
    if plot is not None:
        figure(found, plot)
        typer.echo(f"wrote {plot}", err=True)
