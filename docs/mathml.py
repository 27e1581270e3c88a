"""Formulas as MathML, made while the site is built: a browser shows them without any script.

Pages write TeX, `$…$` within a line and `$$…$$` on lines of their own. Forges show that as well.
"""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FUNCTION = re.compile(r"(<mi>(?:log|ln|exp|sinh)</mi>)(?!<mo[^>]*>&#x00028;|</mrow>)")
FENCE = re.compile(r"<mi>(&#x0230[89AB];|&#x02016;)</mi>")
TIGHT = re.compile(r'<mo(?: stretchy="false")?>(&#x0007C;|&#x0002F;|&#x0221E;)</mo>')
LONG = 40
"""Characters of a formula within a line from which it may be wider than the screen of a phone."""


def typeset(page: str) -> str:
    """A page with MathML in place of its formulas."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[3]), found[2] == "["), page)


def mathml(tex: str, is_block: bool = False) -> str:
    """One formula.

    Raises:
        ValueError: If it has a command that is not known, or braces that do not match.
    """
    tex = " ".join(tex.split())
    if is_block:
        tex = re.sub(r"\\(sum|max|min)(?=_)", r"\\\1\\limits", tex)
    made = convert(tex, display="block" if is_block else "inline")
    if "\\" in made or tex.count("{") - tex.count(r"\{") != tex.count("}") - tex.count(r"\}"):
        raise ValueError(f"a formula that cannot be typeset: {tex}")
    made = FENCE.sub(r'<mo stretchy="false">\1</mo>', made)
    made = TIGHT.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', made)
    made = FUNCTION.sub(r'\1<mspace width="0.17em"/>', made)
    return f'<span class="wide">{made}</span>' if len(tex) > LONG and not is_block else made
