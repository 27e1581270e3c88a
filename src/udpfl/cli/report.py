"""`udpfl report`: the page of one run, or of several side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from udpfl.cli._options import Trust, trust_all
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.report import RunRecord


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or not.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="HTML file to write. By default report.html in the run folder; for several runs "
            "comparison.html in the current folder.",
            show_default=False,
        ),
    ] = None,
    pdf: Annotated[
        Path | None,
        typer.Option(
            help="Also print the page of one run to this PDF file, two sheets of A4 to sign. Needs "
            "Chromium or Chrome, on the PATH or named in $CHROMIUM.",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Also write the charts as image files to this folder.", show_default=False
        ),
    ] = None,
    format_: Annotated[
        Literal["png", "svg"], typer.Option("--format", help="Format of the image files.")
    ] = "png",
    trust: Trust = None,
    json_: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object per run: whether its ledger confirms it."
        ),
    ] = False,
) -> None:
    """Write the report of a run as one HTML file that works offline, or compare several runs.

    The ε of every client is computed again from the ledger. Exit code 1 if a run folder contradicts
    its ledger; the page is written nevertheless.

    Examples:

    udpfl report runs/first

    udpfl report runs/first --pdf first.pdf

    udpfl report runs/first runs/second --out comparison.html

    udpfl report runs/first --figures figures --format svg

    udpfl report runs/first --json
    """
    from udpfl.report import write_report
    from udpfl.report.read import distinct

    runs = distinct(runs)
    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html"))
    if target.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput("out", f"the file must end in .html, got {target.name!r}")
    if pdf is not None:
        _check_pdf(pdf, runs)
    trust_all(trust)
    records = write_report(runs, target)
    typer.echo("\n".join(json.dumps(_plain(run)) for run in records) if json_ else str(target))
    if pdf is not None:
        from udpfl.report.pdf import write_pdf

        write_pdf(target, pdf)
        typer.echo(str(pdf), err=json_)
    if figures is not None:
        from udpfl.report.figures import write_figures

        for path in write_figures(runs, figures, format_):
            typer.echo(str(path), err=json_)
    for run in records:
        _warn(run, quiet=json_)
    if any(run.contradicted for run in records):
        raise typer.Exit(1)


def _check_pdf(pdf: Path, runs: list[Path]) -> None:
    """Refuse what cannot be printed before anything is read."""
    from udpfl.report.pdf import find_browser

    if pdf.suffix.lower() != ".pdf":
        raise InvalidInput("pdf", f"the file must end in .pdf, got {pdf.name!r}")
    if len(runs) > 1:
        raise InvalidInput(
            "pdf",
            "a page to sign is about one run; a browser can print comparison.html",
        )
    find_browser()


def _warn(run: RunRecord, *, quiet: bool) -> None:
    """Say on stderr that a run's ledger says something else, or, unless quiet, nothing at all."""
    reasons = "; ".join(run.verification.reasons)
    if run.contradicted:
        typer.echo(f"udpfl: {run.path} is contradicted by its ledger: {reasons}", err=True)
    elif run.verification.state != "verified" and not quiet:
        typer.echo(f"udpfl: {run.path} is not verified: {reasons}", err=True)


def _plain(run: RunRecord) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "state": run.verification.state,
        "reasons": list(run.verification.reasons),
        "statement": run.statement.to_dict(),
    }
