"""A page as PDF, printed by a headless Chromium where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from udpfl.errors import InvalidInput, UdpflError

_NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "microsoft-edge",
)  # fmt: skip
_VARIABLES = ("UDPFL_CHROMIUM", "CHROMIUM")
_SECONDS = 120
_HINT = (
    "install Chromium or Chrome, or name it in $CHROMIUM; any browser prints report.html on two "
    "sheets of A4, too"
)


def find_browser() -> str:
    """Where a browser is that can print: by $UDPFL_CHROMIUM, by $CHROMIUM, or on the PATH.

    Returns:
        The program.

    Raises:
        InvalidInput: A variable names a program that is not there.
        UdpflError: There is no browser.
    """
    for variable in _VARIABLES:
        if named := os.environ.get(variable):
            if found := shutil.which(named):
                return found
            raise InvalidInput("pdf", f"${variable} names {named!r}, which cannot be run")
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    raise UdpflError(f"a PDF needs a headless Chromium, and none was found: {_HINT}")


def write_pdf(page: Path, target: Path) -> None:
    """Print a page to a PDF file; it appears whole or not at all.

    Args:
        page: An HTML file. Its own style decides about the paper.
        target: The PDF file to write.

    Raises:
        UdpflError: There is no browser, it fails, or the file cannot be written.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="udpfl-pdf-") as folder:
        printed = Path(folder) / "page.pdf"
        _print(browser, page, printed, Path(folder) / "profile")
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            shutil.copyfile(printed, partial)
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise UdpflError(f"cannot write {target}: {error.strerror}") from None


def _print(browser: str, page: Path, target: Path, profile: Path) -> None:
    command = [
        browser, "--headless", "--disable-gpu", "--disable-background-networking", "--disable-sync",
        "--no-first-run", "--no-pdf-header-footer", f"--user-data-dir={profile}",
        f"--print-to-pdf={target}",
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium has no sandbox for root
        command.append("--no-sandbox")
    try:
        done = subprocess.run(
            [*command, page.resolve().as_uri()], capture_output=True, text=True, errors="replace",
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UdpflError(f"{browser} did not print the page within {_SECONDS} s") from None
    except OSError as error:
        raise UdpflError(f"cannot run {browser}: {error.strerror}: {_HINT}") from None
    if done.returncode or not target.is_file():
        last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise UdpflError(f"{browser} did not print the page: {last}")
