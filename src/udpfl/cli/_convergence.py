"""`udpfl analyze convergence` and `extra-rounds`: what noise costs in rounds, beside its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from udpfl.cli import _analyze_tables as tables
from udpfl.cli._options import mechanism_option, set_option
from udpfl.cli.analyze import Delta, Dimension, Json, Plot, Rate, Seed, analyze, draw, show
from udpfl.cli.plan import check_plot
from udpfl.config import load
from udpfl.errors import InvalidInput
from udpfl.planning import plan

__all__ = ["analyze"]

Posed = Annotated[
    Literal["quadratic", "logistic"],
    typer.Option(help="Least squares or logistic regression, both with an l2 penalty."),
]
LocalSteps = Annotated[int, typer.Option(help="Steps of each client in a round.")]
Clients = Annotated[int, typer.Option(help="Number of clients.")]
Records = Annotated[int, typer.Option(help="Records of each client.")]
Repetitions = Annotated[int, typer.Option(help="Number of trainings to average over.")]
PAPER = ("gaussian", "laplace", "staircase")
"""The noises that the paper compares."""


@analyze.command()
def convergence(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Train the network of this configuration instead of a built-in problem."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, set_option("Change one key of the configuration. May be repeated.")
    ] = None,
    problem: Posed = "quadratic",
    mechanism: Annotated[
        str,
        mechanism_option(
            "The noise. With a configuration it replaces the configuration's, and 'all' makes runs "
            "with each noise of the paper.",
            "all",
        ),
    ] = "gaussian",
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
    local_steps: LocalSteps = 1,
    clients: Clients = 5,
    records: Records = 100,
    dimension: Dimension = 10,
    sampling_rate: Rate = 0.5,
    repetitions: Repetitions = 50,
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

    udpfl analyze convergence configs/default.toml --epsilon 8 --mechanism all
    """
    from udpfl.analysis.convex import Convex
    from udpfl.analysis.extra_rounds import network_curves, study
    from udpfl.analysis.figures import convergence_figure, network_figure

    if plot is not None:
        check_plot(plot)
    if config is not None:
        _only(context, {"config", "set_", "mechanism", "epsilon", "json_", "plot"})
        given = [mechanism] if _is_given(context, "mechanism") else []
        names = PAPER if mechanism == "all" else given
        with Console(stderr=True).status("training, without noise and with each"):
            curves = network_curves(load(config, overrides=set_ or []), epsilon or [], names)
        show([each.to_dict() for each in curves], lambda: tables.networks(curves), json_)
        draw(network_figure, curves, plot)
        return
    _require_single(set_, mechanism, epsilon or [])
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
    title = f"{problem}, {mechanism} noise for ε = {budget:g} and its multiples"
    show(found.to_dict(), lambda: tables.study(found, title), json_)
    draw(convergence_figure, found, plot)


def _require_single(set_: Sequence[str] | None, mechanism: str, epsilons: Sequence[float]) -> None:
    """Refuse for a built-in problem what only a configuration can answer."""
    if set_:
        raise InvalidInput("set", "changes keys of a configuration; name one")
    if mechanism == "all":
        raise InvalidInput(
            "mechanism",
            "takes one name; 'all' is possible only with a configuration. "
            "`udpfl analyze extra-rounds` compares mechanisms on the built-in problems",
        )
    if len(epsilons) > 1:
        raise InvalidInput(
            "epsilon", "takes one value; several are possible only with a configuration"
        )


def _only(context: typer.Context, allowed: set[str]) -> None:
    """Refuse options that a configuration answers itself."""
    for name in context.params:
        if name not in allowed and _is_given(context, name):
            raise InvalidInput(
                name, "is an option of the built-in problems; remove it, the configuration decides"
            )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@analyze.command("extra-rounds")
def extra_rounds(
    problem: Posed = "quadratic",
    mechanism: Annotated[
        str, mechanism_option("The noise, or 'all' noises of the paper.", "all")
    ] = "all",
    constants: Annotated[
        Literal["corrected", "paper", "least-loss"],
        typer.Option(help="Constants of the control points."),
    ] = "corrected",
    steps: Annotated[
        Literal["decreasing", "fixed"],
        typer.Option(help="Step sizes that decrease, as the bound wants them, or 1/L throughout."),
    ] = "decreasing",
    epsilon: Annotated[float, typer.Option(help="Budget that the noise is calibrated to.")] = 8.0,
    delta: Delta = 1e-5,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1000,
    local_steps: LocalSteps = 1,
    clients: Clients = 5,
    records: Records = 100,
    dimension: Dimension = 10,
    sampling_rate: Rate = 0.5,
    repetitions: Repetitions = 50,
    target: Annotated[
        float | None,
        typer.Option(
            help="Squared distance that is waited for; by default where the worst training ended.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    json_: Json = False,
    plot: Plot = None,
) -> None:
    """Count the rounds that noise costs clients that walk along curves (client-bezier).

    Each noise is trained at four multiples of its variance, on a strongly convex problem. Two
    bounds are shown: the corrected one, with the variance of all coordinates, and the printed one,
    with the squared mean |noise| of one coordinate.

    Examples:

    udpfl analyze extra-rounds --problem logistic --plot rounds.png

    udpfl analyze extra-rounds --constants paper --steps fixed
    """
    from udpfl.analysis.convex import Convex
    from udpfl.analysis.curve_rounds import study_curves
    from udpfl.analysis.figures import curve_rounds_figure

    if plot is not None:
        check_plot(plot)
    posed = Convex.drawn(problem, clients=clients, records=records, dimension=dimension, seed=seed)
    noises = {}
    for name in PAPER if mechanism == "all" else [mechanism]:
        noise = plan(
            name, epsilon=epsilon, delta=delta, steps=rounds * local_steps,
            sampling_rate=sampling_rate, dimension=dimension,
        ).best.noise  # fmt: skip
        assert noise is not None
        noises[name] = noise
    with Console(stderr=True).status("training along curves, without noise and with each"):
        found = study_curves(
            posed, noises, 1 / (sampling_rate * records), target=target, constants=constants,
            steps=steps, local_steps=local_steps, rate=sampling_rate, rounds=rounds,
            repetitions=repetitions, seed=seed,
        )  # fmt: skip
    title = f"{problem}, {constants} constants, {steps} steps, noise for ε = {epsilon:g}"
    show(found.to_dict(), lambda: tables.curve_study(found, title), json_)
    styles = {name: noise.plot_style for name, noise in noises.items()}
    draw(lambda study, path: curve_rounds_figure(study, styles, path), found, plot)
