"""`udpfl deploy resume`: what is looked at before Flower is called, and how its run ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from udpfl.deploy.client_app import POLICIES
from udpfl.deploy.local import command
from udpfl.errors import InvalidInput, UdpflError
from udpfl.runs.files import read_identity

_STARTED = re.compile(r"Successfully started run (\d+)")
_UNTOUCHED = {"superlink": {"default": "local", "local": {"address": ":local:"}}}
"""What Flower writes where it finds no configuration."""
_ENDS_IN = 10.0
"""Seconds within which the SuperLink says how a run ended whose log is over."""


def resume_run(run: Path, app: Path, superlink: str | None, say: Callable[[str], None]) -> None:
    """Go on with a deployed run as a new run of Flower, and wait until it is over.

    Args:
        run: Its folder, as the server sees it.
        app: Folder of the Flower app.
        superlink: Connection of Flower's configuration; its default one if left out.
        say: Gets each line that Flower prints.

    Raises:
        InvalidInput: The run is no deployment, the app is none, or the connection leads nowhere.
        UdpflError: The run of Flower failed.
    """
    config = app_config(app)
    require_deployed(run)
    require_link(superlink, has_policies=bool(config.get(POLICIES)))
    place = run.absolute() if run.is_dir() else run
    link = [superlink] if superlink else []
    words = ["run", str(app), *link, "--stream", "-c", f"resume={str(place)!r}"]
    code, number = _followed([command("flwr"), *words], say)
    if code:
        raise UdpflError(f"flwr run ended with exit code {code}")
    if number is None:
        raise UdpflError("flwr run has started no run")
    ended = _ending(number, link)
    if ended != "finished:completed":
        again = " ".join(["flwr log", number, *link])
        raise UdpflError(
            f"run {number} of Flower has not been completed ({ended or 'its state is not known'}): "
            f"`{again}` prints what the server said"
        )


def app_config(app: Path) -> dict[str, Any]:
    """What `flwr run -c` may change in a Flower app, as its file says.

    Raises:
        InvalidInput: The folder has no such app, or one that cannot go on with a run.
    """
    what = f"{str(app)!r} is not the folder of a Flower app"
    try:
        values = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        config = values["tool"]["flwr"]["app"]["config"]
    except OSError:
        raise InvalidInput("app", f"{what}: name that folder with --app") from None
    except (ValueError, KeyError, TypeError):
        why = "its pyproject.toml has no [tool.flwr.app.config]"
        raise InvalidInput("app", f"{what}, {why}: name that folder with --app") from None
    if not isinstance(config, dict) or "resume" not in config:
        raise InvalidInput("app", f"{str(app)!r} has no resume in [tool.flwr.app.config]")
    return config


def require_deployed(run: Path) -> None:
    """Refuse what lies here and is no deployed run; a folder at another machine is not looked at.

    Raises:
        InvalidInput: It is none.
    """
    if run.exists() and read_identity(run).sites is None:
        raise InvalidInput(
            "run",
            f"{str(run)!r} is not a run of a deployment: `udpfl run --resume` goes on with it",
        )


def require_link(name: str | None, *, has_policies: bool) -> None:
    """Refuse a connection that Flower does not have, and a simulation without policies of sites.

    Flower's own default is a simulation, in which a deployed run would wait for sites in vain.

    Raises:
        InvalidInput: It is such a connection.
    """
    path = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"
    known = _links(path)
    usual = known.get("default")
    links = {key: own for key, own in known.items() if isinstance(own, dict)}
    real = [key for key, own in links.items() if not _is_simulation(own)]
    hint = f"name the SuperLink of the run with --superlink, one of {', '.join(real) or 'none'} "
    hint += f"in {path}"
    chosen = name or usual
    if chosen not in links:
        raise InvalidInput("superlink", f"there is no connection {chosen!r}: {hint}")
    if _is_simulation(links[chosen]) and not has_policies:
        raise InvalidInput(
            "superlink",
            f"{chosen!r} is Flower's simulation, which does not reach the sites: {hint}",
        )


def _links(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        values = _UNTOUCHED
    except (OSError, ValueError) as error:
        raise InvalidInput("superlink", f"cannot read {path}: {error}") from None
    links = values.get("superlink")
    return links if isinstance(links, dict) else {}


def _is_simulation(link: dict[str, Any]) -> bool:
    return str(link.get("address") or ":local:").startswith(":local")


def _followed(words: Sequence[str], say: Callable[[str], None]) -> tuple[int, str | None]:
    """The exit code of `flwr run`, and the number of the run that it has started."""
    number = None
    with subprocess.Popen(
        list(words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        for line in process.stdout or ():
            say(line.rstrip("\n"))
            found = None if number else _STARTED.search(line)
            number = found[1] if found else number
    return process.returncode, number


def _ending(number: str, link: Sequence[str]) -> str:
    """How a run of Flower ended, in its words, such as "finished:failed"; empty if unknown."""
    words = [command("flwr"), "list", *link, "--run-id", number, "--format", "json"]
    state, ends = "", time.monotonic() + _ENDS_IN
    while not state.startswith("finished") and time.monotonic() < ends:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        try:
            state = str(json.loads(done.stdout[done.stdout.index("{") :])["runs"][0]["status"])
        except (ValueError, KeyError, IndexError, TypeError):
            return ""
        if not state.startswith("finished"):
            time.sleep(0.5)
    return state
