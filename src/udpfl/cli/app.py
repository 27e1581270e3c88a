"""The command itself: registers the verbs and turns errors into one clear line."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from udpfl._version import __version__
from udpfl.cli._convergence import analyze
from udpfl.cli._decisions import budget
from udpfl.cli._options import unknown_option
from udpfl.cli.audit import audit
from udpfl.cli.compare import compare
from udpfl.cli.config import config
from udpfl.cli.data import data
from udpfl.cli.evaluate import evaluate
from udpfl.cli.export import export
from udpfl.cli.init import init
from udpfl.cli.methods import methods
from udpfl.cli.plan import plan
from udpfl.cli.predict import predict
from udpfl.cli.report import report
from udpfl.cli.run import run
from udpfl.config import Config
from udpfl.errors import BudgetExceeded, InvalidInput, UdpflError, UnknownKey

app = typer.Typer(
    help="Differentially private federated learning with any noise, and proved accounting.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command()(init)
app.command()(run)
app.command()(compare)
app.command()(plan)
app.command()(report)
app.command()(evaluate)
app.command()(predict)
app.command()(export)
app.command()(methods)
app.add_typer(analyze, name="analyze")
app.add_typer(audit, name="audit")
app.add_typer(budget, name="budget")
app.add_typer(config, name="config")
app.add_typer(data, name="data")

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, or typer's copy of it


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"udpfl {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print more log messages.")
    ] = False,
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(name)s: %(message)s" if verbose else "note: %(message)s",
    )
    for chatty in ("matplotlib", "PIL"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 fine, 1 bad news, 2 bad input, 130 interrupted."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except InvalidInput as error:
        is_key = isinstance(error, UnknownKey)
        name = error.parameter if is_key else _spelled(error.parameter)
        code = _fail(f"{name}: {error.message}")
    except BudgetExceeded as error:
        _fail(str(error))
        code = 1
    except UdpflError as error:
        code = _fail(str(error))
    except _UsageError as error:
        code = _fail(unknown_option(error, sys.argv[1:] if arguments is None else arguments))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _spelled(parameter: str) -> str:
    """A configuration key as it is written in a file, anything else as an option."""
    if parameter in ("config", "ledger", "client", "file", "run"):
        return parameter.upper()  # arguments without a name of their own
    key = "." in parameter or parameter in Config.model_fields
    return parameter if key else f"--{parameter.replace('_', '-')}"


def _fail(message: str) -> int:
    text = "\n".join(" ".join(line.split()) for line in message.splitlines())
    text = text.replace("Value error, ", "").replace("\n", "\n  ")
    typer.echo(f"udpfl: error: {text}", err=True)
    return 2
