"""Which runs a folder holds, and what each came to; nothing is imported that trains."""

from __future__ import annotations

import fcntl
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from udpfl.errors import InvalidInput
from udpfl.runs import names
from udpfl.runs.files import RunFiles, has_begun
from udpfl.runs.schema import Figure

State = Literal["finished", "stopped", "interrupted", "running", "broken"]
_DEEPEST = 3
"""Runs of a comparison lie in folders of their own, below that of the comparison."""


@dataclass(frozen=True)
class ListedRun:
    """One run, as far as its folder can be read."""

    folder: str
    state: State
    data: str = ""
    method: str = ""
    accuracy: Figure = None
    loss: Figure = None
    """For regression, where there is no accuracy."""
    epsilon: float | str | None = None
    """The largest of any client; None where nothing is claimed or known yet."""
    privacy: str = ""
    """What the number is worth: "guarantee", "nominal" or "none"."""
    rounds: int = 0
    """Done so far."""
    planned: int | None = None
    """Rounds in all."""
    started: str = ""
    why: str | None = None
    """Why it stopped, or cannot be read."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def list_runs(folder: Path) -> list[ListedRun]:
    """Every run in a folder or below it, the oldest first.

    Args:
        folder: Of several runs, or of one.

    Returns:
        A line for each, broken ones included.

    Raises:
        InvalidInput: There is no such folder.

    Example:
        >>> from pathlib import Path
        >>> from udpfl.runs.listing import list_runs
        >>> Path("runs").mkdir(exist_ok=True)
        >>> list_runs(Path("runs"))
        []
    """
    if not folder.is_dir():
        raise InvalidInput("folder", f"there is no folder {str(folder)!r}")
    found = [_listed(path) for path in _run_folders(folder, _DEEPEST)]
    return sorted(found, key=lambda run: (run.started, run.folder))


def _run_folders(folder: Path, deep: int) -> Iterator[Path]:
    if has_begun(folder) or (folder / names.CONFIG).is_file():
        yield folder
    elif deep:
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink() and not inner.name.startswith("."):
                yield from _run_folders(inner, deep - 1)


def _listed(folder: Path) -> ListedRun:
    is_locked = _is_locked(folder)
    try:
        files, settings = RunFiles.read(folder), _settings(folder)
    except InvalidInput as error:
        return ListedRun(str(folder), "running" if is_locked else "broken", why=error.message)
    summary, last = files.summary, [row for row in files.metrics if row.is_evaluated][-1:]
    state: State = "running" if is_locked else "interrupted"
    if summary is not None and not is_locked:
        state = "stopped" if summary.stopped else "finished"
    figures: dict[str, Any] = dict(last[0]) if last else {}
    claim = figures.get("privacy", files.identity.privacy.kind)
    epsilon = (figures.get("epsilon") or {}).get("max")
    if summary is not None:
        figures |= {key: summary.outcome.get(key) for key in ("accuracy", "loss")}
        claim = summary.privacy.kind
        epsilon = None if claim == "none" else summary.privacy.epsilon
    return ListedRun(
        str(folder),
        state,
        data=str(settings.get("data", {}).get("name", "")),
        method=str(settings.get("training", {}).get("algorithm", "")),
        accuracy=figures.get("accuracy"),
        loss=figures.get("loss"),
        epsilon="inf" if epsilon == float("inf") else epsilon,
        privacy=claim,
        rounds=len(files.metrics),
        planned=settings.get("training", {}).get("rounds"),
        started=files.identity.started,
        why=None if summary is None else summary.stopped,
    )


def _settings(folder: Path) -> dict[str, Any]:
    """config.toml as it is: a newer key or somebody's own model need not be known to list a run."""
    try:
        return tomllib.loads((folder / names.CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput("run", f"cannot read {folder / names.CONFIG}: {error}") from None


def _is_locked(folder: Path) -> bool:
    """Whether a process is working in the folder; the lock of a crashed one is gone."""
    try:
        with (folder / names.LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
