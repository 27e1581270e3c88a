"""Export a trained model, with its meaning and its privacy statement in the same file."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from udpfl.engine.memory import first_line
from udpfl.errors import InvalidInput, MissingExtra, UdpflError
from udpfl.trained.model import TrainedModel
from udpfl.writing import write_whole

Format = Literal["onnx", "torchscript", "state-dict"]
INPUTS, OUTPUTS = "inputs", "outputs"
"""What the tensors of an exported model are called."""


class _Whole(nn.Module):
    """A network after its fixed part, so that it takes records as they are."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        network: Any = self.network
        answers: Tensor = network(network.precompute(inputs))
        return answers


def export(trained: TrainedModel, path: str | Path, format: Format) -> Path:
    """Write the model to a file for other software.

    The inputs are the model's own: a table is scaled as `preprocessing` says, which is stored in
    the file as well, with the privacy statement ("udpfl" in the metadata, or an extra file).

    Args:
        trained: The model, as `udpfl.load` returns it.
        path: The file to write.
        format: "onnx", "torchscript", or "state-dict" (a file for `torch.load`).

    Returns:
        The path.

    Raises:
        InvalidInput: The format is not known, or the file cannot be written.
        MissingExtra: A package for this format is not installed.
    """
    if format not in FORMATS:
        raise InvalidInput("format", f"must be one of {', '.join(FORMATS)}, got {format!r}")
    path = Path(path)
    try:
        content = FORMATS[format](trained)
    except UdpflError:
        raise
    except Exception as error:  # exporters refuse what they do not know in many ways
        cause = error.__cause__
        cause = cause if isinstance(cause, Exception) else error
        raise InvalidInput(
            "format",
            f"the model cannot be written as {format}: {first_line(cause)}; torchscript and "
            "state-dict know more operators than onnx",
        ) from error
    write_whole(path, content)
    return path


def _meaning(trained: TrainedModel) -> str:
    return json.dumps(
        {
            "preprocessing": trained.preprocessing.to_dict(),
            "privacy": trained.privacy.to_dict(),
            "statement": str(trained.privacy),
        },
        ensure_ascii=False,
    )


def _whole(trained: TrainedModel) -> nn.Module:
    network = trained.model
    return _Whole(network).eval() if hasattr(network, "precompute") else network


def _example(trained: TrainedModel) -> Tensor:
    about = trained.preprocessing
    return torch.zeros(2, *about.input_shape, dtype=getattr(torch, about.input_type))


def _onnx(trained: TrainedModel) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "onnx", "onnx") from None
    with _quiet():
        program: Any = torch.onnx.export(
            _whole(trained),
            (_example(trained),),
            input_names=[INPUTS],
            output_names=[OUTPUTS],
            dynamic_shapes=({0: torch.export.Dim("records")},),
            verbose=False,
        )
    model = program.model_proto
    onnx.helper.set_model_props(model, {"udpfl": _meaning(trained)})
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def _torchscript(trained: TrainedModel) -> bytes:
    buffer = io.BytesIO()
    with _quiet():
        network = _whole(trained)
        traced: Any = torch.jit.trace(network, _example(trained))
        other = _example(trained)[:1]  # a trace may take the size of its example for a constant
        if not torch.allclose(traced(other), network(other), atol=1e-5):
            raise InvalidInput("format", "the traced model computes something else: use state-dict")
        torch.jit.save(traced, buffer, _extra_files={"udpfl.json": _meaning(trained)})
    return buffer.getvalue()


def _state_dict(trained: TrainedModel) -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": trained.model.state_dict(), "udpfl": _meaning(trained)}, buffer)
    return buffer.getvalue()


FORMATS: dict[Format, Callable[[TrainedModel], bytes]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "state-dict": _state_dict,
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' own notes, which are about their future."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
