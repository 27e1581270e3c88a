"""Configurations that are refused."""

from __future__ import annotations

import pytest

from udpfl.config import load
from udpfl.errors import InvalidInput


def refused(values: dict, *overrides: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        load(values, overrides=overrides)
    return caught.value
