"""A comparison in a notebook: the table as HTML, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from udpfl.comparison.formats import plain_table
from udpfl.comparison.outcome import Comparison


def notebook_table(comparison: Comparison) -> str:
    """A table with its remarks, without a script or an address."""
    table = plain_table(comparison)

    def cells(texts: Sequence[str], tag: str) -> str:
        sides = ["right" if number else "left" for number in table.is_number]
        return "".join(
            f'<{tag} style="text-align: {side}">{escape(text)}</{tag.split()[0]}>'
            for text, side in zip(texts, sides, strict=True)
        )

    rows = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in table.rows)
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in table.remarks)
    return (
        f"<table><caption>{escape(repr(comparison)[1:-1])}</caption><thead>"
        f"<tr>{cells(table.heads, 'th scope=col')}</tr></thead><tbody>{rows}</tbody></table>"
        f"<details><summary>What these numbers mean</summary>{remarks}</details>"
    )
