"""Whether everybody can read a page: names, tables, keyboard, contrast, as a browser renders it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from tests.chromium import Chromium

_SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
WIDTHS = (1440, 390)
"""A desk and a phone."""


def problems(browser: Chromium) -> list[str]:
    """What is wrong with the page that is open now, one sentence each."""
    return browser.run(_SCRIPT)


def assert_readable(browser: Chromium, page: Path, *, ready: str = "") -> None:
    """A page that everybody can read, on a desk and a phone, light and dark.

    It loads without a complaint, asks for nothing but itself, does not scroll sideways, and has
    none of the problems above, folded or unfolded. `ready` is an expression that is true once
    scripts have drawn everything.
    """
    for width, dark in product(WIDTHS, (False, True)):
        browser.open(page, width=width, dark=dark)
        where = f"{page.name} at {width} px, {'dark' if dark else 'light'}"
        assert not ready or browser.run(ready), f"{where}: {ready} is not true"
        assert browser.complaints() == [], where
        assert browser.requests() == [page.resolve().as_uri()], where
        for folded in (True, False):
            if not folded:
                browser.run(_UNFOLD)
            wide = browser.run("document.documentElement.scrollWidth")
            assert wide <= width, f"{where}: {wide} px wide"
            assert problems(browser) == [], where


_UNFOLD = """new Promise((done) => {
  document.querySelectorAll("details").forEach((own) => { own.open = true; });
  setTimeout(done, 50);
})"""
