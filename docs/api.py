"""The Python reference: from a public name to the place where its docstring is.

A page says `::: udpfl.calibrate`. Some modules have the name of the function in them, and some
names are imported only when they are asked for; so a name is looked up in Python first.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

NAMED = re.compile(r"^::: (udpfl(?:\.\w+)*)\.(\w+)$", re.MULTILINE)


def located(markdown: str) -> str:
    """A page whose names lead to where they are defined, shown as they are imported."""
    return NAMED.sub(lambda name: _block(name[1], name[2]), markdown)


def _block(module: str, name: str) -> str:
    thing = inspect.unwrap(getattr(import_module(module), name))
    public = f"{module}.{name}".replace("._", ".")
    options = f"      heading: {public}\n      toc_label: {name}\n"
    return f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n{options}"


class Examples(griffe.Extension):
    """Reads `Example:` in a docstring as the code that it is."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is read."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
