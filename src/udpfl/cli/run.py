"""`udpfl run`: train, with a live view on a terminal and one JSON object for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from udpfl.accounting.statement import shown
from udpfl.cli._completion import one_of
from udpfl.cli._log import is_quiet, logged_rounds
from udpfl.cli._options import DataDir, Trust, overrides_of, set_option, trust_all
from udpfl.cli._preview import show_preview
from udpfl.cli._progress import TimeLeft, running
from udpfl.config import load
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.federation import Observer, Run


def run(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Configuration file (TOML); if not given, the built-in default.",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, set_option("Change one key, e.g. privacy.epsilon=2. May be repeated.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run; by default a new one under runs/."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Continue the run in this folder after a crash.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print what would happen and what it would cost; train and charge nothing.",
        ),
    ] = False,
    trust: Trust = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Also log to tensorboard or mlflow. May be repeated.",
            autocompletion=one_of(["tensorboard", "mlflow"]),
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Also draw the run on a page in the browser, on this machine only."
        ),
    ] = False,
    live_port: Annotated[
        int, typer.Option(help="Port of that page; 0 takes a free one.", min=0, max=65535)
    ] = 0,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Train a model over many clients, each within its own privacy budget.

    Examples:

    udpfl run

    udpfl run --set training.rounds=10 --set privacy.mechanism=laplace

    udpfl run configs/mnist.toml --data-dir DATA --set privacy.epsilon=2

    udpfl run configs/mnist.toml --data-dir DATA --dry-run

    udpfl run --live

    udpfl run --resume runs/mnist5k-fedavg-20260101-120000-ab12
    """
    from udpfl.federation import Interrupted

    overrides = overrides_of(set_, data_dir)
    if out is not None:
        overrides.append(f"out={json.dumps(str(out))}")
    if resume is not None and (config is not None or overrides):
        raise InvalidInput(
            "resume",
            "continues a run with its own settings: leave CONFIG, --set, --data-dir and --out out",
        )
    trust_all(trust)
    if dry_run:
        if resume is not None:
            raise InvalidInput("dry_run", "is for runs that have not begun: leave --resume out")
        show_preview(config, overrides, json_)
        return
    try:
        with _page(live, live_port) as watchers:
            watchers += _trackers(track or [])
            result = _train(config, overrides, resume, watchers)
    except Interrupted as stopped:
        typer.echo(f"interrupted; to continue: {_command_to_resume(stopped.folder)}", err=True)
        raise
    if json_:
        typer.echo(json.dumps(result.to_dict()))
    else:
        show(result, Console(emoji=False))
    if result.stopped:
        typer.echo(f"udpfl: {result.stopped}", err=True)
        raise typer.Exit(1)


@contextmanager
def _page(is_wanted: bool, port: int) -> Iterator[list[Observer]]:
    """The page of `--live`, if that was given; it ends with the run."""
    if not is_wanted:
        if port:
            raise InvalidInput("live_port", "is the port of a page that only --live shows")
        yield []
        return
    from udpfl.live import LivePage

    with LivePage(port) as page:
        typer.echo(f"live page: {page.address}", err=True)
        yield [page]


def _trackers(names: Sequence[str]) -> list[Observer]:
    from udpfl.trackers import tracker

    return [tracker(name) for name in names]


def _train(
    config: Path | None,
    overrides: Sequence[str],
    resume: Path | None,
    watchers: Sequence[Observer],
) -> Run:
    """Train, or go on with a run: a live view on a terminal, elsewhere a line for every round."""
    from udpfl.running import run as train

    console = Console(stderr=True, emoji=False)
    with ExitStack() as stack:
        view = None
        if console.is_terminal and not is_quiet():
            view = stack.enter_context(Live(console))
        else:
            stack.enter_context(logged_rounds())
        # It only has what it needs of an observer: to import that class takes longer than `--help`.
        observers = [*([cast("Observer", view)] if view else []), *watchers]
        if resume is not None:
            if view and (resume / "config.toml").is_file():
                view.expect(load(resume / "config.toml").training.rounds)
            return train(resume=resume, observers=observers)
        settings = load(config, overrides=overrides)
        if view:
            view.expect(settings.training.rounds)
        return train(settings, observers=observers)


def _command_to_resume(folder: Path) -> str:
    """The command line that goes on with a run, and trusts the code that its settings name."""
    from udpfl.federation.configured_names import own_places

    places = own_places(load(folder / "config.toml"))
    return f"udpfl run --resume {folder}" + "".join(f" --trust {place}" for place in places)


class Live:
    """A progress bar with rate, remaining time, accuracy and epsilon. An observer of the run."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(*_columns(console.width), console=console)
        self._task: TaskID | None = None
        self._figures = ""

    def __enter__(self) -> Live:
        self._shown = running(self._bar)
        self._shown.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.__exit__(None, None, None)

    def expect(self, rounds: int) -> None:
        """How many rounds there will be."""
        self._task = self._bar.add_task("", total=rounds, figures="")

    def on_round(self, row: dict[str, Any]) -> None:
        """Move the bar on."""
        if self._task is None:
            self.expect(row["round"])
        assert self._task is not None
        self._figures = figures_of(row) or self._figures
        self._bar.update(self._task, completed=row["round"], figures=self._figures)


def _columns(width: int) -> list[ProgressColumn]:
    """What fits: accuracy and epsilon always, then time left, a bar, rate and time so far."""
    columns: list[ProgressColumn] = [TextColumn("[bold]round"), MofNCompleteColumn()]
    if width >= 76:
        columns.append(BarColumn(bar_width=24 if width >= 100 else 12))
    if width >= 100:
        columns += [_Rate(), TimeElapsedColumn()]
    return [*columns, TimeLeft(), TextColumn("{task.fields[figures]}")]


class _Rate(ProgressColumn):
    """Rounds per second, over the last rounds."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        return Text(f"{task.speed:.1f}/s" if task.speed else "")


def figures_of(row: dict[str, Any]) -> str:
    """Accuracy and epsilon of a round in a few words; empty where it was not evaluated."""
    from udpfl.live.figures import privacy_of, quality_of

    if row.get("loss") is None:
        return ""
    said = privacy_of(row)
    return f"{quality_of(row)}  {'[red]not private[/]' if row['privacy'] == 'none' else said}"


def show(result: Run, console: Console) -> None:
    """The outcome for people."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    outcome = result.to_dict()
    for name in ("accuracy", "rmse", "mae", "mse", "loss"):
        if (value := outcome.get(name)) is not None:
            table.add_row(name, value if isinstance(value, str) else f"{value:.4f}")
    if result.target is not None:
        took = f"reached in {result.reached}" if result.reached else "not reached"
        table.add_row("target", f"{result.target}: {took}")
    for name, figures in result.references.items():
        said = ", ".join(f"{key} {value:.4f}" for key, value in figures.items())
        table.add_row("beside", escape(f"{name}: {said}"))
    style = {"guarantee": "green", "nominal": "yellow", "none": "bold red"}[result.privacy.kind]
    table.add_row("privacy", f"[{style}]{escape(str(result.privacy))}[/]")
    if result.privacy.kind != "none":  # the line above has the assumptions, and every reason
        for note in result.privacy.notes:
            table.add_row("", f"[dim]{escape(note)}[/]")
    epsilons = sorted({shown(statement.epsilon) for statement in result.clients.values()})
    if result.privacy.kind != "none" and len(epsilons) > 1:
        table.add_row("clients", f"{len(result.clients)} clients spent ε from {_range(result)}")
    shared = f"shared between runs{', new' if result.ledger_is_new else ''}"
    scope = "this run only" if result.ledger_path.parent == result.folder else shared
    table.add_row("ledger", escape(f"{result.ledger_path} ({scope})"))
    model = result.folder / "model.safetensors"
    table.add_row("model", escape(str(model)) if model.is_file() else "none: no client has trained")
    if result.report.is_file():
        table.add_row("report", escape(str(result.report)))
    done = len(result.metrics)
    length = f"{done} round{'' if done == 1 else 's'}, {result.seconds:.1f} s"
    table.add_row("run", escape(f"{result.folder}, {length}"))
    console.print(table, highlight=False, soft_wrap=True)
    sys.stdout.flush()


def _range(result: Run) -> str:
    values = [statement.epsilon for statement in result.clients.values()]
    return f"{shown(min(values))} to {shown(max(values))}"
