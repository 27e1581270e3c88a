"""Picture files (JPEG, PNG) as arrays of one size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np

from udpfl.data.records import Array
from udpfl.errors import InvalidInput

Colour = Literal["grey", "rgb"]
Filter = Literal["lanczos", "bicubic"]
SUFFIXES = (".jpg", ".jpeg", ".png")


def picture_files(folder: Path) -> list[Path]:
    """The picture files in a folder, sorted by name."""
    try:
        found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES]
    except OSError as error:
        raise InvalidInput("data.dir", f"cannot read {folder}: {error}") from None
    return sorted(path for path in found if not path.name.startswith("."))


def read(paths: Sequence[Path], *, side: int, colour: Colour, filter_: Filter) -> Array:
    """The pictures as bytes [n, channels, side, side], reduced with an antialiasing filter."""
    from PIL import Image  # here, so that other data sets do not wait for it

    mode, channels = ("L", 1) if colour == "grey" else ("RGB", 3)
    resampling = Image.Resampling.LANCZOS if filter_ == "lanczos" else Image.Resampling.BICUBIC

    def one(path: Path) -> Array:
        try:
            with Image.open(path, formats=("JPEG", "PNG")) as image:
                if image.mode.startswith(("I", "F")):
                    raise InvalidInput(
                        "data.dir",
                        f"{path} must have 8 bits per channel, but its mode is {image.mode}",
                    )
                plain = image if image.mode == mode else image.convert(mode)
                fits = plain.size == (side, side)
                return np.asarray(plain if fits else plain.resize((side, side), resampling))
        except InvalidInput:
            raise
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise InvalidInput("data.dir", f"cannot read the picture {path}: {error}") from None

    pixels = np.empty((len(paths), side, side, channels), dtype=np.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding leaves the interpreter free
        for i, picture in enumerate(pool.map(one, paths)):
            pixels[i] = picture.reshape(side, side, channels)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
