"""What `evaluate`, `predict` and `export` share: the run, and how files are written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from udpfl.cli._options import chosen_dialect
from udpfl.data.csv_files import Dialect
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.trained import TrainedModel

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
Delimiter = Annotated[
    str | None,
    typer.Option(help="Between cells; by default as in the run.", show_default=False),
]
Decimal = Annotated[
    str | None,
    typer.Option(help="Decimal mark; by default as in the run.", show_default=False),
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Of the text; by default as in the run.", show_default=False),
]


def dialect_for(
    trained: TrainedModel, delimiter: str | None, decimal: str | None, encoding: str | None
) -> Dialect:
    """That of the run, where the options do not say otherwise."""
    table = trained.preprocessing.table
    return chosen_dialect(table.dialect if table else Dialect(), delimiter, decimal, encoding)


def read_array(path: Path, key: str) -> Any:
    """An array of a .npy file, or one by its name in a .npz file; nothing in it is executed."""
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
        return found[key] if path.suffix == ".npz" else found
    except KeyError:
        raise InvalidInput("data", f"{path} has no array {key!r}") from None
    except (OSError, ValueError) as error:
        raise InvalidInput("data", f"cannot read {path}: {error}") from None


def is_array(path: Path | str | None) -> bool:
    """Whether a file holds arrays and not a table."""
    return path is not None and Path(path).suffix in (".npy", ".npz")
