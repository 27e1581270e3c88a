"""Encoders as files: half precision in safetensors, with the recipe in the header."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load
from safetensors.torch import save as to_bytes

from udpfl.errors import InvalidInput
from udpfl.features.encoder import Encoder, Stage

FORMAT = "udpfl encoder 1"
LICENCE = "Apache-2.0"
SHIPPED = "encoder.safetensors"
"""The encoder that comes with the package, beside this file."""
SHIPPED_SHA256 = "4f228bc27ae5a789a7ce24f83ea081c40321df758627eab6dea3669bbb0f52d6"
_LARGEST = 60_000.0
"""Numbers above it have no half."""


def save(path: Path, encoder: Encoder, about: Mapping[str, Any]) -> None:
    """Write an encoder.

    Args:
        path: The file.
        encoder: What to write.
        about: Recipe and log, for the header.
    """
    tensors = {}
    for name, own in encoder.state_dict().items():
        if own.abs().max() > _LARGEST:
            raise InvalidInput("encoder", f"{name} has numbers that half precision cannot hold")
        tensors[name] = own.half().cpu().contiguous()
    header = {"format": FORMAT, "licence": LICENCE, "about": json.dumps(about)}
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(to_bytes(tensors, header))
    os.replace(part, path)


def describe(path: Path) -> dict[str, Any]:
    """What the header of an encoder's file says: recipe, log, licence; and the file's hash.

    Args:
        path: The file.

    Raises:
        InvalidInput: It is no encoder.
    """
    data = _read(path)
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        **_header(path),
    }


def load_encoder(path: Path | None = None, sha256: str | None = None) -> Encoder:
    """An encoder from its file, the one that comes with the package if there is no path.

    Args:
        path: The file.
        sha256: What the file's SHA-256 has to be; that of the shipped file is known.

    Returns:
        The encoder, with nothing to train.

    Raises:
        InvalidInput: There is no such file, it is no encoder, or its hash is another.

    Example:
        >>> from udpfl.features import load_encoder
        >>> load_encoder().parts
        3
    """
    if path is None:
        return copy.deepcopy(_shipped())
    data = _read(path)
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256.lower():
        raise InvalidInput("encoder", f"{path} has SHA-256 {found}, not {sha256}: another file")
    recipe = _header(path)["recipe"]
    try:
        stages = [Stage(**own) for own in recipe["stages"]]
        encoder = Encoder(stages, recipe["parts"])
        encoder.load_state_dict({key: own.float() for key, own in load(data).items()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            "encoder", f"{path} does not hold what its header says: {error}"
        ) from None
    if not all(bool(own.isfinite().all()) for own in encoder.state_dict().values()):
        raise InvalidInput("encoder", f"{path} holds numbers that are not finite")
    return encoder.requires_grad_(False).eval()


def shipped_path() -> Path:
    """Where the encoder that comes with the package lies."""
    return Path(str(files("udpfl.features"))) / SHIPPED


@cache
def _shipped() -> Encoder:
    return load_encoder(shipped_path(), SHIPPED_SHA256)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput("encoder", f"cannot read {path}: {error.strerror}") from None


def _header(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as opened:
            found = opened.metadata() or {}
        if found.get("format") != FORMAT:
            raise ValueError(f"its format is {found.get('format')!r}, not {FORMAT!r}")
        about: dict[str, Any] = json.loads(found["about"])
        return {**about, "licence": found["licence"]}
    except Exception as error:  # safetensors raises its own type for each kind of damage
        raise InvalidInput("encoder", f"{path} is not an encoder's file: {error}") from None
