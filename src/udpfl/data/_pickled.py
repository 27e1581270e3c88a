"""Pickled dictionaries of byte arrays and lists, read without running anything in them.

A pickle is a program: it may call whatever it names. This reader knows the few names with which
CPython and numpy write a byte array, and answers even these with functions of its own, so that
neither foreign code nor numpy's own unpickling runs. Every other name is refused.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from udpfl.data.records import Array
from udpfl.errors import InvalidInput


class _ByteType:
    """Stands for numpy.dtype, of which unsigned bytes are admitted only."""

    def __init__(self, code: Any, *_: Any) -> None:
        if _text(code) not in ("u1", "|u1", "B", "uint8"):
            raise ValueError(f"it holds an array of {code!r}, not of unsigned bytes")

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment: nothing that matters to single bytes."""


class _Bytes:
    """Stands for an array while it is rebuilt: `array` is there once its state is known."""

    array: Array

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self._fill(content, kind, shape, "F" if fortran else "C")

    def _fill(self, content: Any, kind: Any, shape: Any, order: Any) -> _Bytes:
        if not isinstance(kind, _ByteType) or not isinstance(content, (bytes, bytearray)):
            raise ValueError("it holds an array that is not of unsigned bytes")
        flat = np.frombuffer(content, dtype=np.uint8)
        self.array = flat.reshape(shape, order="F" if _text(order) == "F" else "C")
        return self


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any, *_: Any) -> _Bytes:
    return _Bytes()._fill(content, kind, shape, order)


def _encoded(text: str, codec: str) -> bytes:
    # How Python 3 writes bytes in the older protocols.
    if _text(codec) != "latin1":
        raise ValueError(f"it encodes bytes as {codec!r}")
    return text.encode("latin1")


def _text(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value


_KNOWN: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": _Bytes,
    "numpy.dtype": _ByteType,
    "numpy.core.multiarray._reconstruct": _Bytes,
    "numpy._core.multiarray._reconstruct": _Bytes,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy._core.numeric._frombuffer": _from_buffer,
    "_codecs.encode": _encoded,
}


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes, where: object) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")  # Python 2 wrote text as bytes
        self._where = where

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        known = _KNOWN.get(f"{module}.{name}")
        if known is None:
            raise InvalidInput(
                "data.dir",
                f"{self._where} asks to run {module}.{name}, which no data file needs; "
                "it was refused and nothing was run",
            )
        # A new function each time: a pickle may set attributes of what it gets.
        return lambda *arguments: known(*arguments)


def unpickled(content: bytes, where: object) -> dict[str, Any]:
    """The dictionary in a pickle; byte arrays come as numpy arrays. `where` is named in errors."""
    try:
        found = _Reader(content, where).load()
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not a dictionary")
        return {
            str(_text(key)): value.array if isinstance(value, _Bytes) else value
            for key, value in found.items()
        }
    except InvalidInput:
        raise
    except Exception as error:  # a damaged pickle fails in any way at all
        raise InvalidInput("data.dir", f"cannot read {where}: {error}") from None
