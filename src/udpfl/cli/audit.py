"""`udpfl audit`: try to refute a privacy claim, as an adversary would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from udpfl.accounting import Accountant, Accounting, Norm, Sensitivity
from udpfl.errors import InvalidInput
from udpfl.planning import plan

audit = typer.Typer(
    name="audit", help="Try to refute a claim: with adversaries, canaries and a second accountant."
)

Name = Literal["gaussian", "laplace", "staircase"]
Json = Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")]
ErrorRate = Annotated[
    float, typer.Option(help="Probability that a true claim is refuted, at most.")
]


@audit.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@audit.command()
def mechanism(
    epsilon: Annotated[float, typer.Option(help="The claim: epsilon of all releases together.")],
    dimension: Annotated[int, typer.Option(help="Number of parameters.")],
    mechanism: Annotated[Name, typer.Option(help="The noise.")] = "gaussian",
    delta: Annotated[
        float, typer.Option(help="The claim: delta of all releases together; 0 for pure DP.")
    ] = 1e-5,
    accounting: Annotated[
        Accounting,
        typer.Option(help="How the noise was calibrated: 'scalar' is the paper's own."),
    ] = "vector",
    canary: Annotated[
        str,
        typer.Option(
            help="What the record adds: 'dirac' in one coordinate, 'dense' in all, or a file with "
            "a gradient (.npy or text)."
        ),
    ] = "dense",
    trials: Annotated[int, typer.Option(help="Trials in each world.")] = 20_000,
    steps: Annotated[int, typer.Option(help="How many times noise is released.")] = 1,
    sampling_rate: Annotated[
        float, typer.Option(help="Probability that the record takes part in a release.")
    ] = 1.0,
    clip: Annotated[float, typer.Option(help="Bound on one record's gradient.")] = 1.0,
    norm: Annotated[Norm, typer.Option(help="Norm in which it is clipped.")] = "l2",
    accountant: Annotated[
        Accountant, typer.Option(help="Whose claim: rdp, pld, or the tighter one.")
    ] = "best",
    error: ErrorRate = 0.05,
    json_: Json = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the claimed and the measured epsilon (png, svg or pdf).", show_default=False
        ),
    ] = None,
) -> None:
    """Calibrate noise to a claim, draw it many times, and try to refute the claim.

    Exit code 1 when it is refuted. What is claimed is what `udpfl plan` prints for these options.

    Examples:

    udpfl audit mechanism --mechanism laplace --epsilon 1 --delta 0 --dimension 1000 --accounting
    scalar

    udpfl audit mechanism --epsilon 4 --dimension 1000 --trials 200000 --json
    """
    from udpfl.audit import Releases, audit_releases
    from udpfl.audit import canary as canary_of
    from udpfl.audit.figure import audit_figure

    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidInput("plot", f"must end in .png, .svg or .pdf, got {plot.name!r}")
    shift = canary_of(canary, Sensitivity(clip, norm, dimension))
    row = plan(
        mechanism,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        sampling_rate=sampling_rate,
        clip=clip,
        norm=norm,
        dimension=dimension,
        accounting=accounting,
        accountant=accountant,
    ).best
    assert row.noise is not None
    assert row.statement is not None
    claim = f"{mechanism}, {accounting} accounting, {canary} canary"
    console = Console(stderr=True)
    with console.status(f"{2 * trials * steps * dimension:,} draws of {mechanism} noise"):
        verdict = audit_releases(
            Releases(row.noise, shift, steps, sampling_rate),
            row.statement.epsilon,
            delta,
            claim=claim,
            trials=trials,
            error=error,
        )
    if json_:
        typer.echo(json.dumps(verdict.to_dict(), indent=2))
    else:
        typer.echo(f"{claim}: {verdict}")
        typer.echo(f"power: {verdict.power}")
        if verdict.estimate is not None:
            typer.echo(f"if the noise is Gaussian indeed: ε ≥ {verdict.estimate:.3g}")
    if plot is not None:
        try:
            audit_figure([verdict], plot)
        except OSError as problem:
            raise InvalidInput("plot", f"cannot write {plot}: {problem.strerror}") from None
        typer.echo(f"wrote {plot}", err=True)
    if verdict.refuted:
        raise typer.Exit(1)
