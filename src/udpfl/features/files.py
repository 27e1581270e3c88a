"""Encoders as files: half precision in safetensors, with the recipe in the header."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from udpfl.errors import InvalidInput, MissingExtra, UdpflError
from udpfl.features.encoder import Encoder, Stage, check_whole
from udpfl.writing import write_whole

FORMAT = "udpfl encoder 1"
LICENCE = "Apache-2.0"
SHIPPED = "encoder.safetensors"
"""The encoder that comes with the package, beside this file."""
SHIPPED_SHA256 = "4f228bc27ae5a789a7ce24f83ea081c40321df758627eab6dea3669bbb0f52d6"
_LARGEST_FILE = 256 << 20
_LARGEST = 60_000.0
"""Numbers above it have no half."""


def save(path: Path, encoder: Encoder, about: Mapping[str, Any]) -> None:
    """Write an encoder.

    Args:
        path: The file.
        encoder: What to write.
        about: Recipe and log, for the header.

    Raises:
        InvalidInput: It has numbers that half precision cannot hold, or the file cannot be written.

    Example:
        >>> from dataclasses import asdict
        >>> from pathlib import Path
        >>> from udpfl.features import Recipe, describe, load_encoder, save
        >>> save(Path("mine.safetensors"), load_encoder(), {"recipe": asdict(Recipe()), "log": []})
        >>> describe(Path("mine.safetensors"))["recipe"]["family"]
        'leaves'
    """
    tensors = {}
    for name, own in encoder.state_dict().items():
        if not own.abs().max() <= _LARGEST:  # NaN is not either
            raise InvalidInput("encoder", f"{name} has numbers that half precision cannot hold")
        tensors[name] = own.half().cpu().contiguous()
    header = {"format": FORMAT, "licence": LICENCE, "about": json.dumps(about)}
    data = stored().save(tensors, header)
    try:
        write_whole(path, data)
    except UdpflError as error:
        raise InvalidInput("out", str(error)) from None


def describe(path: Path) -> dict[str, Any]:
    """What the header of an encoder's file says: recipe, log, licence; and the file's hash.

    Args:
        path: The file.

    Returns:
        `recipe`, `log`, `licence`, `sha256` and `bytes`.

    Raises:
        InvalidInput: It is no encoder.

    Example:
        >>> from udpfl.features import describe, shipped_path
        >>> describe(shipped_path())["recipe"]["images"]
        4000
    """
    data = _read(path)
    header, _ = _parsed(path, data)
    return {**header, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


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
    header, tensors = _parsed(path, data)
    recipe = header["recipe"]
    try:
        with torch.device("meta"):  # no memory until the tensors are known to be of these sizes
            encoder = Encoder([Stage(**own) for own in recipe["stages"]], recipe["parts"])
        encoder.load_state_dict({key: own.float() for key, own in tensors.items()}, assign=True)
    except (KeyError, TypeError, ValueError, RuntimeError, InvalidInput) as error:
        raise InvalidInput(
            "encoder", f"{path} does not hold what its header says: {error}"
        ) from None
    if not all(bool(own.isfinite().all()) for own in encoder.state_dict().values()):
        raise InvalidInput("encoder", f"{path} holds numbers that are not finite")
    return encoder.requires_grad_(False).eval()


def shipped_path() -> Path:
    """Where the encoder that comes with the package lies.

    Returns:
        Its path.

    Example:
        >>> from udpfl.features import shipped_path
        >>> shipped_path().name
        'encoder.safetensors'
    """
    return Path(str(files("udpfl.features"))) / SHIPPED


@cache
def _shipped() -> Encoder:
    return load_encoder(shipped_path(), SHIPPED_SHA256)


def stored() -> Any:
    """What reads and writes tensors; networks can be imported where it is not installed."""
    try:
        from safetensors import torch as safetensors
    except ImportError:
        raise MissingExtra("safetensors", "train") from None
    return safetensors


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # what is no file may have no end
            raise OSError("it is not a file")
        if path.stat().st_size > _LARGEST_FILE:
            raise OSError("it is larger than any encoder's file")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        raise InvalidInput("encoder", f"cannot read {path}: {_said(error)}") from None


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _parsed(path: Path, data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of these bytes; they are not read again, so both are those of the hash."""
    try:
        tensors = stored().load(data)  # which looks at all lengths
        (length,) = struct.unpack("<Q", data[:8])
        found = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        if found.get("format") != FORMAT:
            raise ValueError(f"its format is {found.get('format')!r}, not {FORMAT!r}")
        about = json.loads(found["about"])
        recipe, log, licence = about["recipe"], about["log"], found["licence"]
        if not (licence.isprintable() and str(recipe.get("family", "")).isprintable()):
            raise ValueError("its licence or its family is not printable")
        if not all(str(own["device"]).isprintable() and own["seconds"] >= 0 for own in log):
            raise ValueError("its log is not that of a training")
        for name in {"images", "size", "seed"} & recipe.keys():
            check_whole(name, recipe[name], 0, 2**63)
        return {"recipe": recipe, "log": log, "licence": licence}, tensors
    except MissingExtra:
        raise
    except Exception as error:  # safetensors raises its own type for each kind of damage
        raise InvalidInput("encoder", f"{path} is not an encoder's file: {error}") from None
