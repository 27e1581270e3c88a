"""`udpfl export`: the model of a run as a file for other software."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from udpfl.cli._options import Trust, trust_all
from udpfl.cli._trained import RunArgument
from udpfl.errors import InvalidInput

_SUFFIX = {"onnx": ".onnx", "torchscript": ".torchscript.pt", "state-dict": ".state-dict.pt"}


def export(
    run: RunArgument,
    format_: Annotated[
        Literal["onnx", "torchscript", "state-dict"] | None,
        typer.Option(
            "--format",
            help="What to write: onnx by default, which needs the extra `onnx`.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; by default named after the run.", show_default=False),
    ] = None,
    trust: Trust = None,
) -> None:
    """Export the model of a run as ONNX, TorchScript, or a state dict for torch.load.

    The file holds the privacy statement and how cells become inputs as well: in the metadata of an
    ONNX file under `udpfl`, in a TorchScript file as `udpfl.json`. A state dict is stored as
    `state_dict` beside `udpfl`.

    Example:

    udpfl export RUN --format onnx --out model.onnx
    """
    from udpfl.trained import export as write
    from udpfl.trained import load

    trust_all(trust)
    if format_ is None and out is not None and out.suffix != ".onnx":
        raise InvalidInput("format", f"say which format {out} shall have: {', '.join(_SUFFIX)}")
    format_ = format_ or "onnx"
    path = out or Path(f"{run.resolve().name}{_SUFFIX[format_]}")
    trained = load(run)
    write(trained, path, format_)
    shape = ", ".join(map(str, ("n", *trained.preprocessing.input_shape)))
    typer.echo(f"wrote {path}: inputs [{shape}], outputs [n, {trained.preprocessing.outputs}]")
