"""`udpfl compare`: a grid of settings, every cell run with several seeds, in one table."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

from udpfl.cli._completion import assignments
from udpfl.cli._options import DataDir, overrides_of, set_option
from udpfl.cli._progress import TimeLeft, running
from udpfl.cli.plan import check_plot
from udpfl.config import load
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.comparison import Comparison


def compare(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Configuration file (TOML); if not given, the built-in default.",
            show_default=False,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="A key and the values to try. May be repeated: every combination is run. The last "
            "part of a key is enough if no other key ends with it.",
            autocompletion=assignments,
        ),
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE with KEY=VALUE,VALUE",
            help="Keys whose values go together: the first value of one with the first of the "
            "other, and so on. May be repeated, and combined with --vary.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="How many seeds (0, 1, 2, …), or a list of seeds: 3,5,8.")
    ] = "3",
    set_: Annotated[
        list[str] | None, set_option("Change one key in all runs. May be repeated.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for all runs. By default a folder under runs/; the same command uses the "
            "same folder again.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(help="Runs at the same time, each in a process with its share of the cores."),
    ] = 1,
    together: Annotated[
        int | None,
        typer.Option(
            help="Runs that one process trains side by side, their training merged; if not given, "
            "16 on CUDA and 1 on a CPU.",
            show_default=False,
        ),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Print the table to paste it elsewhere: latex, csv or markdown. With the name of "
            "a file (.tex, .csv or .md), write it there.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the results to this file (png, svg or pdf): one line for each value of the "
            "first key, over the values of the second. A pair counts as one key.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a grid of settings with several seeds each, and compare the results.

    The same command continues a comparison that was stopped. A larger grid uses the runs that are
    already there. Exit code 1 if a run failed; the other runs are done nevertheless.

    Examples:

    udpfl compare --vary mechanism=gaussian,laplace --vary epsilon=2,4,8

    udpfl compare my.toml --vary clip=0.5,1,2 --seeds 5 --plot clip.png

    udpfl compare --vary 'epsilon=2,[2, 8]' --seeds 3,5,8 --jobs 2 --out grid

    udpfl compare --pair 'epsilon=2,8 with learning_rate=1,2' --table latex
    """
    from udpfl.comparison import ComparisonInterrupted
    from udpfl.comparison import compare as run_all
    from udpfl.comparison.axes import read_pairs, read_seeds, read_vary
    from udpfl.comparison.formats import read_format, write_table

    overrides = overrides_of(set_, data_dir)
    if plot is not None:
        check_plot(plot)
        if not vary and not pair:
            raise InvalidInput("plot", "needs --vary or --pair: without it, nothing can be drawn")
    if table is not None and json_:
        raise InvalidInput("table", "cannot be combined with --json: choose one of the two")
    format_, file = (None, None) if table is None else read_format(table)
    console = Console(stderr=True, emoji=False)
    view = Live(console)
    try:
        with running(view.bar) if console.is_terminal else nullcontext():
            result = run_all(
                load(config, overrides=overrides),
                vary=read_vary(vary or ()),
                pair=read_pairs(pair or ()),
                seeds=read_seeds(seeds),
                out=out,
                jobs=jobs,
                together=together,
                tell=view.tell,
            )
    except ComparisonInterrupted as stopped:
        typer.echo(f"interrupted: {stopped}; repeat the command to continue", err=True)
        raise
    if json_:
        typer.echo(json.dumps(result.to_dict()))
    elif format_ is not None and file is None:
        typer.echo(result.table(format=format_), nl=False)
    else:
        _show(result, Console(emoji=False))
    if format_ is not None and file is not None:
        write_table(result, format_, file)
        typer.echo(f"wrote {file}", err=True)
    if plot is not None:
        result.plot(plot)
        typer.echo(f"wrote {plot}", err=True)
    if not result.complete:
        raise typer.Exit(1)


def _show(result: Comparison, console: Console) -> None:
    """The table, and where the runs came from."""
    from udpfl.comparison.table import show

    show(result, console)
    trained = f"{result.trained} run{'' if result.trained == 1 else 's'} trained"
    resumed = f" ({result.resumed} of them resumed)" if result.resumed else ""
    found = f"{result.found} found in {escape(str(result.folder))}"
    page = f"; page: {escape(str(result.report))}" if result.report.is_file() else ""
    console.print(f"{trained}{resumed}, {found}{page}", highlight=False, soft_wrap=True)


class Live:
    """A bar over all runs: how many are done, the time that is left, and what is under way."""

    def __init__(self, console: Console) -> None:
        columns: list[ProgressColumn] = [TextColumn("[bold]runs"), MofNCompleteColumn()]
        if console.width >= 76:
            columns.append(BarColumn(bar_width=24 if console.width >= 100 else 12))
        columns += [TimeLeft(), TextColumn("{task.description}")]
        # Runs begin with some seconds of planning: what counts is the rate over many minutes.
        self.bar = Progress(*columns, console=console, speed_estimate_period=600)

    def tell(self, done: float, total: int, now: str) -> None:
        """Move the bar on."""
        if not self.bar.tasks:
            # What was there already says nothing about the time that the rest will take.
            self.bar.add_task("", total=total, completed=int(done))
        self.bar.update(self.bar.task_ids[0], completed=done, description=escape(now))
