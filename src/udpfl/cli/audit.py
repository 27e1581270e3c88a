"""`udpfl audit`: try to refute a privacy claim, as an adversary would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from udpfl.accounting import Accountant, Accounting, Norm, Sensitivity
from udpfl.cli._options import Trust, mechanism_option, set_option, trust_all
from udpfl.cli.plan import check_plot
from udpfl.config import load
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Radial
from udpfl.planning import PlanRow, plan

if TYPE_CHECKING:
    from udpfl.audit import Releases, Verdict

audit = typer.Typer(
    name="audit",
    help="Try to refute a privacy claim with adversaries, canaries and a second accountant.",
)

Json = Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="Draw the claimed and the measured epsilon (png, svg or pdf).", show_default=False
    ),
]
ErrorRate = Annotated[float, typer.Option(help="Largest probability that a true claim is refuted.")]


@audit.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@audit.command()
def mechanism(
    epsilon: Annotated[float, typer.Option(help="The claim: epsilon of all releases together.")],
    dimension: Annotated[int, typer.Option(help="Number of parameters.")],
    mechanism: Annotated[str, mechanism_option("The noise.")] = "gaussian",
    delta: Annotated[
        float, typer.Option(help="The claim: delta of all releases together; 0 for pure DP.")
    ] = 1e-5,
    accounting: Annotated[
        Accounting,
        typer.Option(help="How the noise is calibrated; 'scalar' as in the paper."),
    ] = "vector",
    canary: Annotated[
        str,
        typer.Option(
            help="Gradient of the record: 'dirac' is one coordinate, 'dense' is all coordinates; "
            "or a file with a gradient (.npy or text)."
        ),
    ] = "dense",
    trials: Annotated[
        int, typer.Option(help="Number of trials with the record, and as many without it.")
    ] = 20_000,
    steps: Annotated[int, typer.Option(help="How many times noise is released.")] = 1,
    sampling_rate: Annotated[
        float, typer.Option(help="Probability that the record takes part in a release.")
    ] = 1.0,
    clip: Annotated[float, typer.Option(help="Bound on one record's gradient.")] = 1.0,
    norm: Annotated[Norm, typer.Option(help="Norm of the clip.")] = "l2",
    accountant: Annotated[
        Accountant,
        typer.Option(
            help="Accountant of the claim: rdp, pld, or 'best', the tighter one; with scalar "
            "accounting also 'paper', the paper's own."
        ),
    ] = "best",
    error: ErrorRate = 0.05,
    json_: Json = False,
    plot: Plot = None,
) -> None:
    """Calibrate noise to a claim, draw it many times, and try to refute the claim.

    Exit code 1 if the claim is refuted. The claim is what `udpfl plan` prints for these options.

    Examples:

    udpfl audit mechanism --epsilon 4 --dimension 1000 --trials 200000

    udpfl audit mechanism --mechanism laplace --epsilon 3 --dimension 500
    """
    from udpfl.audit import Releases
    from udpfl.audit import canary as canary_of

    if plot is not None:
        check_plot(plot)
    shift = canary_of(canary, Sensitivity(clip, norm, dimension))
    planned = plan(
        mechanism, epsilon=epsilon, delta=delta, steps=steps, sampling_rate=sampling_rate,
        clip=clip, norm=norm, dimension=dimension, accounting=accounting, accountant=accountant,
    ).best  # fmt: skip
    assert planned.noise is not None
    releases = Releases(planned.noise, shift, steps, sampling_rate)
    claim = f"{accounting} accounting, {canary} canary"
    with Console(stderr=True).status(
        Text(f"{2 * trials * steps * dimension:,} draws of {planned.mechanism} noise")
    ):
        verdicts = _audited(planned, releases, claim, trials, error)
    many = "One release" if steps == 1 else f"{steps:,} releases"
    _say(verdicts, json_, plot, f"{many} of {dimension:,} coordinates")


def _audited(
    planned: PlanRow, releases: Releases, claim: str, trials: int, error: float
) -> list[Verdict]:
    """Verdicts on what is claimed of the noise, and on its rounding."""
    from udpfl.audit import audit_lattice, audit_releases
    from udpfl.audit.lattice import ROUNDING

    name, statement, numbers = planned.mechanism, planned.statement, releases.shift.size
    assert statement is not None
    verdict = audit_releases(
        releases, statement.epsilon, statement.delta, claim=f"{name}, {claim}", trials=trials,
        error=error,
    )  # fmt: skip
    if isinstance(releases.mechanism, Radial):  # whose words no adversary tells apart
        return [verdict]
    lattice = audit_lattice(
        releases.mechanism, releases.steps * numbers, statement.epsilon,
        claim=f"{name}, {ROUNDING}", error=error,
    )  # fmt: skip
    return [verdict, lattice]


@audit.command()
def run(
    where: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG|RUN",
            help="Configuration file (TOML) or run folder; if not given, the built-in default.",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, set_option("Change one configuration key. May be repeated.")
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Number of replays with the record, and as many without it.")
    ] = 2_000,
    canaries: Annotated[
        int | None,
        typer.Option(
            help="Canary records of a whole training, each in it or not at random; by default "
            "200, or half of a client's records. 0 skips this audit.",
            show_default=False,
        ),
    ] = None,
    error: ErrorRate = 0.05,
    trust: Trust = None,
    json_: Json = False,
    plot: Plot = None,
) -> None:
    """Audit the training itself: replay steps with and without a record, and train one whole run.

    For a configuration the initial model is audited, for a run folder the trained one. Exit code 1
    if a claim is refuted.

    Examples:

    udpfl audit run

    udpfl audit run configs/default.toml --set privacy.mechanism=laplace

    udpfl audit run runs/mnist --trials 5000 --canaries 0 --json
    """
    from udpfl.audit.run import audit_run

    if plot is not None:
        check_plot(plot)
    if set_ and where is not None and where.is_dir():
        raise InvalidInput("set", "a run is audited with its own settings: leave --set out")
    trust_all(trust)
    target = load(where, overrides=set_ or ()) if set_ or where is None else where
    with Console(stderr=True).status("replaying steps, then training once"):
        verdicts = audit_run(target, trials=trials, canaries=canaries, error=error)
    _say(verdicts, json_, plot, "Replayed steps, and one whole training")


@audit.command()
def ledger(
    path: Annotated[Path, typer.Argument(help="A ledger, or the folder of a run.")],
    delta: Annotated[float, typer.Option(help="Delta for clients that have no budget.")] = 1e-5,
    json_: Json = False,
) -> None:
    """Check a budget ledger with code and formulas that the ledger itself does not use.

    The command reads only the file. It adds up every charge and computes a lower and an upper bound
    of each client's epsilon. Exit code 1 if anything contradicts what the ledger says.

    Examples:

    udpfl audit ledger runs/mnist

    udpfl audit ledger ledger.sqlite --delta 1e-6 --json
    """
    from udpfl.audit.ledger import audit_ledger

    with Console(stderr=True).status("adding up the charges and accounting them again"):
        found = audit_ledger(path, delta)
    if json_:
        typer.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        for account in found.accounts:
            typer.echo(str(account))
        for remark in found.remarks:
            typer.echo(f"remark: {remark}")
        typer.echo(str(found))
    if not found.sound:
        raise typer.Exit(1)


def _say(verdicts: list[Verdict], json_: bool, plot: Path | None, audited: str) -> None:
    """The verdicts for people or programs; exit code 1 if one of them refutes its claim."""
    from udpfl.audit.figure import audit_figure

    if json_:
        typer.echo(json.dumps([verdict.to_dict() for verdict in verdicts], indent=2))
    else:
        for verdict in verdicts:
            typer.echo(f"{verdict.claim}: {verdict}")
            if verdict.caught is not None:
                typer.echo(f"  power: {verdict.caught}")
            if verdict.estimate is not None:
                typer.echo(f"  if the noise really is Gaussian: ε ≥ {verdict.estimate:.3g}")
    if plot is not None:
        try:
            audit_figure(verdicts, plot, audited)
        except OSError as problem:
            raise InvalidInput("plot", f"cannot write {plot}: {problem.strerror}") from None
        typer.echo(f"wrote {plot}", err=True)
    if any(verdict.refuted for verdict in verdicts):
        raise typer.Exit(1)
