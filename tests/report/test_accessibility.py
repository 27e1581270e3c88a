"""The check that pages have to pass finds each fault by itself, and nothing on a sound page."""

from __future__ import annotations

import pytest

from tests.report.accessibility import assert_readable, problems

SOUND = """<!DOCTYPE html><html lang="en"><head><title>Page</title><link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body { color: #000; background: #fff; } .white { color: #fff; } .low { color: #777; }
.narrow { width: 100px; overflow-x: auto; white-space: nowrap; }</style></head><body><main>
<h1>Page</h1><p id="one">Text</p>
<table><thead><tr><th scope="col">a</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>
<dl><div><dt>term</dt><dd>value</dd></div></dl><button>Go</button>
<label>Name <input></label><svg aria-hidden="true"></svg>
</main></body></html>"""
FAULTS = {
    ' lang="en"': ("", "html has no lang"),
    "<title>Page</title>": ("", "the page has no title"),
    "<h1>Page</h1>": ("<h1>Page</h1><h1>Again</h1>", "the page has 2 h1, not one"),
    "<main>": ("<div>", "the page has 0 main landmarks, not one"),
    "</main>": ("</main><div>outside</div>", "div “outside” is in no landmark"),
    "<p id": ('<p id="one">First</p><p id', "the id one occurs 2 times"),
    "Go": ("", "button can be used but has no name"),
    "<label>Name <input></label>": ("<input>", "input can be used but has no name"),
    ' aria-hidden="true"': ("", "svg is a picture without a name"),
    '<th scope="col">': ("<th>", "th “a” is a header cell without scope"),
    "<dt>term</dt><dd>value</dd>": (
        "<dd>value</dd><dt>term</dt>",
        "div “valueterm” does not give each value of the list after its term",
    ),
    "Text</p>": (
        'Text</p><div class="narrow">a long line that does not fit</div>',
        "div.narrow “a long line that does not fit” scrolls but cannot be reached with keys",
    ),
    '<p id="one">Text': (
        '<p class="white">Text', "p.white “Text” has contrast 1.00, less than 4.5"
    ),
    '<p id="one">': ('<p class="low">', "p.low “Text” has contrast 4.48, less than 4.5"),
}  # fmt: skip


def test_a_sound_page_passes(browser, tmp_path):
    page = tmp_path / "sound.html"
    page.write_text(SOUND)
    assert_readable(browser, page)


@pytest.mark.parametrize("place", FAULTS)
def test_each_fault_is_found(browser, tmp_path, place):
    page, (instead, said) = tmp_path / "faulty.html", FAULTS[place]
    page.write_text(SOUND.replace(place, instead, 1))
    browser.open(page)
    assert said in problems(browser)


def test_a_page_that_is_too_wide_or_asks_for_more_is_refused(browser, tmp_path):
    page = tmp_path / "wide.html"
    wide = '<div style="width: 500px">wide</div>'
    page.write_text(SOUND.replace("</main>", f"{wide}</main>"))
    with pytest.raises(AssertionError, match=r"wide\.html at 390 px, light: 5"):
        assert_readable(browser, page)
    page.write_text(SOUND.replace("</main>", '<img alt="" src="other.png"></main>'))
    with pytest.raises(AssertionError):
        assert_readable(browser, page)
