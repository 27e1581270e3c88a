"""`udpfl audit`: try to refute a privacy claim, as an adversary would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from udpfl.accounting import Accountant, Accounting, Norm, Sensitivity
from udpfl.cli._options import Trust, mechanism_option, set_option, trust_all
from udpfl.cli._stages import ShowProgress, stages
from udpfl.cli.plan import check_plot
from udpfl.config import load
from udpfl.errors import InvalidInput, UdpflError
from udpfl.mechanisms import Radial
from udpfl.planning import PlanRow, plan

if TYPE_CHECKING:
    from udpfl.audit import AuditResult, Releases, Verdict

audit = typer.Typer(
    name="audit",
    help="Try to refute a privacy claim with adversaries, canaries and a second accountant.",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
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
    progress: ShowProgress = None,
) -> None:
    """Calibrate noise to a claim, draw it many times, and try to refute the claim.

    Exit code 1 if the claim is refuted. The claim is what `udpfl plan` prints for these options.

    Examples:

    udpfl audit mechanism --epsilon 4 --dimension 1000 --trials 200000

    udpfl audit mechanism --mechanism laplace --epsilon 3 --dimension 500
    """
    from udpfl.audit import AuditResult, Releases
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
    with stages(progress) as told:
        drawn = 2 * trials * steps * dimension
        told(f"drawing {drawn:,} numbers of {planned.mechanism} noise", 0, 1)
        verdicts = _audited(planned, releases, claim, trials, error)
        assert planned.statement is not None
        stated = planned.statement
        found = AuditResult(tuple(verdicts), stated.epsilon, stated.delta)
        found.calculate_power(told)
    many = "One release" if steps == 1 else f"{steps:,} releases"
    _say(found, json_, plot, f"{many} of {dimension:,} coordinates")
    _end(found)


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
    save: Annotated[
        bool,
        typer.Option(
            help="Add the result to the run folder as a new file in audits/, for `udpfl report`. "
            "Nothing else in the folder changes."
        ),
    ] = True,
    progress: ShowProgress = None,
) -> None:
    """Audit the training itself: replay steps with and without a record, and train one whole run.

    For a configuration the initial model is audited, for a run folder the trained one. The last
    line says whether the claim was refuted, and how much too little noise would have been caught.
    Exit code 1 if a claim is refuted.

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
    with stages(progress) as told:
        found = audit_run(target, trials=trials, canaries=canaries, error=error, progress=told)
        found.calculate_power(told)
    _say(found, json_, plot, "Replayed steps, and one whole training")
    if save and where is not None and where.is_dir():
        _save(where, found, trials, canaries)
    _end(found)


def _save(folder: Path, found: AuditResult, trials: int, canaries: int | None) -> None:
    """Keep the result in the run folder; one that cannot be written to is no reason to fail."""
    from udpfl.runs.audits import write_audit
    from udpfl.runs.files import read_identity

    try:
        path = write_audit(folder, read_identity(folder).id, found.to_dict(), trials, canaries)
        typer.echo(f"kept in {path}; `udpfl report {folder}` shows it", err=True)
    except UdpflError as problem:
        typer.echo(f"note: the result was not kept: {problem}", err=True)


@audit.command()
def ledger(
    path: Annotated[Path, typer.Argument(help="A ledger, or the folder of a run.")],
    delta: Annotated[float, typer.Option(help="Delta for clients that have no budget.")] = 1e-5,
    json_: Json = False,
    progress: ShowProgress = None,
) -> None:
    """Check a budget ledger with code and formulas that the ledger itself does not use.

    The command reads only the file. It adds up every charge and encloses each client's epsilon
    between two bounds of its own. Exit code 1 if anything contradicts what the ledger says.

    Examples:

    udpfl audit ledger runs/mnist

    udpfl audit ledger ledger.sqlite --delta 1e-6 --json
    """
    from udpfl.audit.ledger import audit_ledger

    with stages(progress) as told:
        found = audit_ledger(path, delta, progress=told)
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


def _say(found: AuditResult, json_: bool, plot: Path | None, audited: str) -> None:
    """The verdicts for people or programs; for people the sentence about all of them comes last."""
    from udpfl.audit.figure import audit_figure

    if json_:
        typer.echo(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        for verdict in found:
            typer.echo(f"{verdict.claim}: {verdict}")
            if verdict.caught is not None:
                typer.echo(f"  power: {verdict.caught}")
            if verdict.estimate is not None:
                typer.echo(f"  if the noise really is Gaussian: ε ≥ {verdict.estimate:.3g}")
        typer.echo(str(found))
    if plot is not None:
        try:
            audit_figure(list(found), plot, audited)
        except OSError as problem:
            raise InvalidInput("plot", f"cannot write {plot}: {problem.strerror}") from None
        typer.echo(f"wrote {plot}", err=True)


def _end(found: AuditResult) -> None:
    """Exit code 1 if the claim was refuted."""
    if found.refuted:
        raise typer.Exit(1)
