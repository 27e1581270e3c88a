"""Run folders of version 1: their run.json has no version, and says less than it does now.

Its privacy is a sentence. Whether a trusted server adds the noise and what the task is are in files
that come later, so a run that never got that far does not say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from udpfl.runs import names

_KINDS = {"private": "guarantee", "nominal": "nominal"}


def as_version_2(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The run.json of a folder of version 1 with the fields of version 2; it stays as it is."""
    word, _, why = str(identity.get("privacy", "")).partition(": ")
    return {
        **identity,
        "version": 1,
        "privacy": {"kind": _KINDS.get(word, "none"), "why": why},
        "server_adds_noise": _server_adds_noise(folder),
        "task": _task(folder),
    }


def _server_adds_noise(folder: Path) -> bool:
    said = _read(folder / names.SUMMARY).get("server_adds_noise")
    # What a trusted server lets out lies there.
    return (folder / names.AGGREGATES).is_dir() if said is None else bool(said)


def _task(folder: Path) -> str:
    said = _read(folder / names.EVALUATION).get("task")
    if said is not None:
        return str(said)
    return "regression" if '"mae"' in _text(folder / names.METRICS) else "classification"


def _read(path: Path) -> Mapping[str, Any]:
    """The object in a file; empty where it cannot be read, which its own reader reports."""
    try:
        found = json.loads(_text(path))
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
