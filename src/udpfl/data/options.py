"""Options of a data set, checked by name: a misspelt one is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from udpfl.errors import InvalidInput


def known(data_set: str, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse an option that the data set does not have."""
    names = tuple(names)
    for option in options:
        if option not in names:
            raise InvalidInput(
                f"data.options.{option}",
                f"is not an option of {data_set}; {alternatives(option, names)}",
            )


def alternatives(name: str, names: Iterable[str]) -> str:
    """What to write instead of an unknown name: the nearest, or all there are."""
    names = tuple(names)
    nearest = get_close_matches(name, names, n=1)
    if nearest:
        return f"did you mean {nearest[0]}?"
    return f"there is {', '.join(names)}" if names else "there is none"
