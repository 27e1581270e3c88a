"""Settings that several membership attacks share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from udpfl.config.section import Count, Section


class RecordOptions(Section):
    """Of an attack on records."""

    records: Count = Field(
        default=2000, description="Records that are attacked at most, half of them members."
    )


class ShadowOptions(RecordOptions):
    """Of an attack with shadow models."""

    shadows: Count = Field(default=16, description="Shadow models, an even number of at least 4.")


class ModeOptions(ShadowOptions):
    """Of an attack that can do without shadows that had the record."""

    mode: Literal["online", "offline"] = Field(
        default="online",
        description="Whether shadows with the record are used, or only those without it.",
    )


class QueryOptions(ModeOptions):
    """Of an attack that may ask about versions of each record."""

    queries: Literal[1, 2, 18] = Field(
        default=1,
        description="For images: the image, with its mirror image, or both at nine shifts.",
    )
