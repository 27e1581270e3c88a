"""Why something was refused or failed, as one line of bounded length.

A reason may quote what somebody else sent. In a log that must not look like lines of its own, and
a long request must not fill a disk with what was refused of it.
"""

from __future__ import annotations

LONGEST = 2_000
"""Characters of a reason, in logs and answers."""
_LEFT_OUT = " [...] "


def plain(text: object) -> str:
    """The text without line breaks and control characters, its middle left out if it is long.

    Example:
        >>> from udpfl.site.reasons import plain
        >>> plain("a name with\\n line breaks")
        'a name with line breaks'
    """
    whole = str(text)
    if len(whole) > 4 * LONGEST:  # what is cut anyway is not looked at
        whole = whole[: 2 * LONGEST] + _LEFT_OUT + whole[-2 * LONGEST :]
    words = " ".join(whole.split())
    line = "".join(own if own.isprintable() else "\N{REPLACEMENT CHARACTER}" for own in words)
    if len(line) <= LONGEST:
        return line
    half = (LONGEST - len(_LEFT_OUT)) // 2
    return line[:half] + _LEFT_OUT + line[-half:]
