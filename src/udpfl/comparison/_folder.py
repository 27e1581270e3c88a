"""The folder of a comparison: a run folder for every cell and seed, and which is which.

comparison.json      the base, the keys that were ever varied, what was asked of every run, and
                     whether all of it was asked before the first run began
NAME/                the run folders, named after their settings
compare.html         all runs on one page

A run is known by its whole configuration, not by its name: a later grid over other keys finds what
an earlier one has trained. Where it is computed is no part of that, nor which target it is to
reach, which is read off its rounds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from udpfl.comparison.axes import said, short
from udpfl.config import Config, PrivacyConfig, load
from udpfl.config.models import SECTIONS
from udpfl.errors import InvalidInput
from udpfl.runs.files import has_begun
from udpfl.runs.folder import RunFolder
from udpfl.writing import write_json

_INDEX = "comparison.json"
_PLACE = ("out", "threads", "device")
_LONGEST = 120


def default_folder(base: Config, keys: Iterable[str]) -> Path:
    """The same for the same command, so that it goes on where it stopped."""
    kept = {k: v for k, v in _flat(base).items() if k not in _freed(keys)}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    name = f"compare-{base.data.name}-{base.training.algorithm}".replace(":", "-")
    return Path("runs") / f"{name}-{digest[:8]}"


@contextmanager
def comparison_folder(path: Path, base: Config, keys: Iterable[str]) -> Iterator[ComparisonFolder]:
    """The folder for a comparison of this base, and for nobody else meanwhile."""
    ComparisonFolder(path, base, keys)  # refuses before anything is written
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("out", f"cannot create {str(path)!r}: {error.strerror}") from None
    with ExitStack() as stack:
        try:
            stack.enter_context(RunFolder(path).locked())
        except InvalidInput as taken:
            raise InvalidInput("out", taken.message) from None
        yield ComparisonFolder(path, base, keys)


class ComparisonFolder:
    """Finds and names the run folders of a comparison."""

    def __init__(self, path: Path, base: Config, keys: Iterable[str]) -> None:
        self.path = path
        self._base, self._varied = base, set(keys)
        self._asked: dict[str, Config] = {}
        self._has_begun = False
        self.fixed = True
        """Whether every run was asked for before the first of them was begun."""
        if (path / _INDEX).is_file():
            self._read()
        elif path.exists() and (not path.is_dir() or _holds_something(path)):
            raise InvalidInput("out", f"{str(path)!r} exists and is not the folder of a comparison")

    @property
    def report(self) -> Path:
        """The page with all runs."""
        return self.path / "compare.html"

    @property
    def begun(self) -> list[Path]:
        """The folders of all runs that were ever begun here, also of other grids."""
        return [self.path / name for name in self._asked if self._is_begun(name)]

    def _is_begun(self, name: str) -> bool:
        return has_begun(self.path / name)

    def place(self, config: Config, settings: Mapping[str, Any]) -> Path:
        """Where this run is or will be. `settings` only give it a name that says something."""
        config = _anywhere(config)
        for name, asked in self._asked.items():
            if asked == config:
                return self.path / name
        parts = [f"{short(key)}={said(value)}" for key, value in settings.items()]
        plain = re.sub(r"[^\w.,=+-]+", "-", ",".join(parts))[:_LONGEST]
        plain = name = f"{plain},seed={config.seed}".lstrip(",")
        number = 2
        while name in self._asked:
            name, number = f"{plain}-{number}", number + 1
        self._asked[name] = config
        self.fixed = self.fixed and not self._has_begun
        return self.path / name

    def write(self) -> None:
        """Remember where everything is, before anything of it is begun."""
        write_json(
            self.path / _INDEX,
            {
                "base": _plain(self._base),
                "varied": sorted(self._varied),
                "fixed": self.fixed,
                "runs": {name: _plain(asked) for name, asked in self._asked.items()},
            },
        )

    def _read(self) -> None:
        try:
            stored = json.loads((self.path / _INDEX).read_text(encoding="utf-8"))
            base, varied = load(stored["base"]), set(stored["varied"])
            self._asked = {name: _anywhere(load(asked)) for name, asked in stored["runs"].items()}
            self.fixed = stored.get("fixed") is True  # an older file does not say
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput("out", f"cannot read {self.path / _INDEX}: {error}") from None
        self._varied |= varied
        if differences := _differences(base, self._base, self._varied):
            raise InvalidInput(
                "out",
                f"{str(self.path)!r} holds a comparison with other settings: "
                f"{'; '.join(differences)}; choose another folder",
            )
        self._base = base
        self._has_begun = any(map(self._is_begun, self._asked))


def _differences(there: Config, here: Config, varied: Iterable[str]) -> list[str]:
    old, new, free = _flat(there), _flat(here), _freed(varied)
    return [
        f"{key} is {_word(old[key])} there and {_word(new[key])} here"
        for key in old
        if key not in free and old[key] != new[key]
    ]


def _word(value: Any) -> str:
    return "not set" if value is None else said(value)


def _freed(varied: Iterable[str]) -> set[str]:
    """Keys in which runs of one comparison may differ; a varied option frees all beside it."""
    keys = [".".join(key.split(".")[:2]) for key in varied]
    return {*keys, *_PLACE, "seed", "schema_version", "training.target", "training.memory"}


def _flat(config: Config) -> dict[str, Any]:
    """Every key; without privacy, those of privacy at what they would be if it was turned on."""
    values = config.model_dump()
    if not config.privacy.enabled:
        values["privacy"] = {**PrivacyConfig().model_dump(), "mechanism": "none"}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if key in SECTIONS else {key: value}
    return flat


def _anywhere(config: Config) -> Config:
    return load(_plain(config))


def _plain(config: Config) -> dict[str, Any]:
    """What decides the outcome, as plain data."""
    plain = config.model_dump(exclude=set(_PLACE), exclude_none=True)
    for key in ("target", "memory"):
        plain["training"].pop(key, None)
    return plain


def _holds_something(path: Path) -> bool:
    return any(not entry.name.startswith(".") for entry in path.iterdir())
