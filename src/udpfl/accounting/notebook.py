"""How results look in a notebook: one small table, with nothing fetched from anywhere.

Text takes its colour from the notebook, light or dark; only the bar at the side has its own, and
what it stands for is said in words as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_BARS = {"guarantee": "#2e9e6b", "nominal": "#d17a1d", "none": "#d9534f"}
_STYLE = "border-collapse:collapse;margin:0;font-variant-numeric:tabular-nums"
_HEAD = "text-align:left;padding:2px 14px 2px 0;font-weight:600;vertical-align:top"
_CELL = "text-align:left;padding:2px 0;vertical-align:top;overflow-wrap:anywhere"


def card(title: str, kind: str, rows: Iterable[tuple[str, object]]) -> str:
    """A title and a table of names and values, as HTML; every text is escaped.

    Args:
        title: In bold, above the table.
        kind: The kind of privacy, which decides about the bar at the side.
        rows: Names and values, in their order.

    Returns:
        HTML for `_repr_html_`.

    Example:
        >>> from udpfl.accounting.notebook import card
        >>> "<b>One &amp; two</b>" in card("One & two", "none", [("accuracy", 0.5)])
        True
    """
    body = "".join(
        f'<tr><th scope="row" style="{_HEAD}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(str(value))}</td></tr>'
        for name, value in rows
    )
    bar = _BARS.get(kind, "#888888")
    return (
        f'<div style="border-left:5px solid {bar};padding:2px 0 2px 12px;max-width:48em">'
        f'<b>{escape(title)}</b><table style="{_STYLE}"><tbody>{body}</tbody></table></div>'
    )
