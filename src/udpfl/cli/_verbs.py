"""The verbs of the command, each imported when somebody calls it.

To add a verb: one line in `VERBS`, and a module that has a function or a `typer.Typer` of the
verb's name. A module whose function needs a command class of its own calls that `Command`. The line
of help is what `udpfl --help` lists; the first sentence of the verb's own help says the same, and a
test compares the two.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


class Verb(NamedTuple):
    """Where a verb is found, and what it does."""

    module: str
    """In `udpfl.cli`."""
    help: str


VERBS: dict[str, Verb] = {
    "init": Verb("init", "Write a commented configuration for your table."),
    "run": Verb("run", "Train a model over many clients, each within its own privacy budget."),
    "compare": Verb(
        "compare", "Run a grid of settings with several seeds each, and compare the results."
    ),
    "runs": Verb("runs", "List the runs in a folder: data, method, accuracy, epsilon and state."),
    "doctor": Verb(
        "doctor", "Check what is installed, the device, the data folder and the ledgers."
    ),
    "plan": Verb(
        "plan",
        "Find the smallest noise that keeps a privacy budget, and the mechanism that needs the "
        "least.",
    ),
    "report": Verb(
        "report",
        "Write the report of a run as one HTML file that works offline, or compare several runs.",
    ),
    "evaluate": Verb(
        "evaluate", "Evaluate the model of a run on its test records, or on records of yours."
    ),
    "predict": Verb("predict", "Predict new records with the model of a run."),
    "export": Verb(
        "export",
        "Export the model of a run as ONNX, TorchScript, or a state dict for torch.load.",
    ),
    "methods": Verb(
        "methods",
        "List every method for training.algorithm: its paper, what it releases and guarantees.",
    ),
    "analyze": Verb(
        "_convergence",
        "Measure curves between models, convergence against its bound, and errors of the noise.",
    ),
    "audit": Verb(
        "audit", "Try to refute a privacy claim with adversaries, canaries and a second accountant."
    ),
    "attack": Verb(
        "attack", "Attack a finished run, and say what its model or an update tells of the records."
    ),
    "budget": Verb(
        "_decisions",
        "Show and change privacy budgets: what each client has spent and what is left.",
    ),
    "deploy": Verb(
        "deploy", "Run the same federation on Flower, across machines: app, keys, demo, status."
    ),
    "site": Verb("site", "Write and check the policy of a site, and answer requests within it."),
    "config": Verb("config", "Show all configuration keys, and check a configuration file."),
    "features": Verb(
        "features", "Train encoders on random images, and show them and their images."
    ),
    "data": Verb("data", "List the data sets, check their files, and download them."),
}


class Verbs(TyperGroup):
    """Lists verbs by their line in `VERBS`, and imports the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loaded()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb as help and completion list it."""
        verb = VERBS.get(cmd_name)
        return None if verb is None else TyperCommand(cmd_name, help=verb.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb itself."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load_verb(name), rest


@functools.cache
def load_verb(name: str) -> Any:
    """Import a verb."""
    module = import_module(f"udpfl.cli.{VERBS[name].module}")
    found = getattr(module, name)
    holder = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, cls=getattr(module, "Command", None))(found)
    return get_group(holder).commands[name]


class _Loaded(Mapping[str, Any]):
    """Every verb by its name, imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in VERBS:
            raise KeyError(name)
        return load_verb(name)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)
