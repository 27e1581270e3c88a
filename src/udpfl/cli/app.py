"""The command itself: calls the verbs and turns errors into one clear line."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from udpfl._version import __version__
from udpfl.cli._log import set_up_log
from udpfl.cli._verbs import Verbs
from udpfl.errors import BudgetExceeded, InvalidInput, UdpflError, WrongKey

# Typer wraps meanings to the width of the terminal, and zsh takes the line breaks for text.
if "_UDPFL_COMPLETE" in os.environ:
    os.environ["COLUMNS"] = "10000"

app = typer.Typer(
    cls=Verbs,
    help="Differentially private federated learning with any noise, and proved accounting.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

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
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress and no notes.")
    ] = False,
) -> None:
    if verbose and quiet:
        raise typer.BadParameter("--verbose and --quiet cannot both hold")
    set_up_log(verbose, quiet)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def call(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments; returns its exit code."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except InvalidInput as error:
        is_key = isinstance(error, WrongKey)
        name = error.parameter if is_key else _spelled(error.parameter)
        code = _fail(f"{name}: {error.message}")
    except BudgetExceeded as error:
        _fail(str(error))
        code = 1
    except UdpflError as error:
        code = _fail(str(error))
    except _UsageError as error:
        from udpfl.cli._options import unknown_option

        code = _fail(unknown_option(error, sys.argv[1:] if arguments is None else arguments))
    except typer.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0


def _spelled(parameter: str) -> str:
    """A configuration key as it is written in a file, anything else as an option.

    What is in capitals already is an argument.
    """
    from udpfl.config import Config

    if parameter.isupper():
        return parameter
    if parameter in ("config", "ledger", "client", "file", "run", "policy", "encoder"):
        return parameter.upper()  # arguments without a name of their own
    key = "." in parameter or parameter in Config.model_fields
    return parameter if key else f"--{parameter.replace('_', '-')}"


def _fail(message: str) -> int:
    text = "\n".join(" ".join(line.split()) for line in message.splitlines())
    text = text.replace("Value error, ", "").replace("\n", "\n  ")
    typer.echo(f"udpfl: error: {text}", err=True)
    return 2
