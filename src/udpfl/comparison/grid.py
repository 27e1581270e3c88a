"""The grid of a comparison: the keys that vary, their values, and the cells that come of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from udpfl.config import Config, apply, load
from udpfl.config.documents import known_keys
from udpfl.config.explaining import hint
from udpfl.config.models import SECTIONS
from udpfl.config.unused import unused_keys
from udpfl.errors import InvalidInput
from udpfl.federation.configured_names import refuse_unknown

_NOT_VARIED = {
    "seed": "use --seeds for that",
    "out": "all runs of a comparison are in one folder",
    "threads": "does not change what is trained",
    "device": "does not change what is trained",
    "schema_version": "has one value only",
    "privacy": "vary privacy.mechanism instead, with none as one of its values",
    "training": "is a section: vary one of its keys",
    "training.target": "does not change what is trained",
    "privacy.ledger": "every run of a comparison has its own ledger",
}


OWN_LEDGER = "ledger.sqlite"
"""In a cell: the run gets a ledger with a filter, which no other run shares."""


@dataclass(frozen=True)
class Cell:
    """One combination of values, and what it comes to: a configuration, or why there is none."""

    settings: Mapping[str, Any]
    """The varied keys, in full, and their values."""
    config: Config | None
    refused: InvalidInput | None = None

    def seeded(self, seed: int) -> Config:
        """The configuration of one run."""
        assert self.config is not None, "a cell that was refused has no runs"
        return load(self.config, {"seed": seed})


@dataclass(frozen=True)
class Grid:
    """All cells, the last key varying fastest, each of them to be run with every seed."""

    keys: tuple[str, ...]
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]


def grid_of(base: Config, vary: Mapping[str, Sequence[Any]], seeds: int | Sequence[int]) -> Grid:
    """Every combination of the values over the base.

    A value that fits into no cell at all is bad input and raises, and so does a name that stands
    for nothing; one that only does not go with some of the others makes cells that say why they
    cannot be run.
    """
    if base.privacy.ledger is not None and base.privacy.pace != "plateau":
        raise InvalidInput(
            "privacy.ledger",
            "every run of a comparison has its own ledger: the budget in a shared ledger is "
            "planned for one run, not for a grid of runs",
        )
    axes: dict[str, list[Any]] = {}
    for name, values in vary.items():
        key = key_of(name)
        if key in axes:
            raise InvalidInput("vary", f"{key} is varied twice")
        axes[key] = _distinct(key, values)
    cells = tuple(
        _cell(base, dict(zip(axes, values, strict=True))) for values in product(*axes.values())
    )
    for key, values in axes.items():
        for value in values:
            _require_one(cell for cell in cells if cell.settings[key] == value)
    _require_one(cells)
    for key in axes:
        _refuse_unused(key, base, cells)
    refuse_unknown(cell.config for cell in cells if cell.config is not None)
    return Grid(tuple(axes), cells, _seeds(seeds))


def key_of(name: str) -> str:
    """The full name of a key: its last part will do where no other key ends like it."""
    keys = known_keys()
    if (why := _NOT_VARIED.get(name)) is not None:
        raise InvalidInput("vary", f"{name} cannot be varied: {why}")
    if name in SECTIONS:
        return f"{name}.name"  # a model or data set by its name, as in udpfl.run(model="mlp")
    section, dot, rest = name.partition(".")
    option = f"{section}.options" in keys and rest.startswith("options.") and all(name.split("."))
    if name in keys or option:
        return name
    same = [key for key in keys if key.rpartition(".")[2] == name]
    if len(same) == 1 and not dot:
        if (why := _NOT_VARIED.get(same[0])) is not None:
            raise InvalidInput("vary", f"{same[0]} cannot be varied: {why}")
        return same[0]
    if same:
        raise InvalidInput("vary", f"{name} is ambiguous: write {' or '.join(same)}")
    raise InvalidInput("vary", f"there is no key {name!r}; {hint(name)}")


def short(key: str) -> str:
    """What a key is called where room is scarce: its last part, unless others end like it."""
    leaf = key.rpartition(".")[2]
    same = [known for known in known_keys() if known.rpartition(".")[2] == leaf]
    if leaf == "name":
        return key.partition(".")[0]
    return leaf if len(same) <= 1 else key


def said(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(said, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_vary(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Values by key from texts like "epsilon=2,[2, 8]"; each value is read as in --set."""
    vary: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        parts = _split(values)
        if not equals or not name or not all(parts):
            raise InvalidInput("vary", f"must look like epsilon=2,4,8, got {text!r}")
        key = key_of(name)
        if key in vary:
            raise InvalidInput("vary", f"{key} is varied twice")
        vary[key] = [apply({}, [f"value={part}"])["value"] for part in parts]
    return vary


def read_seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves with commas between them."""
    parts = [part.strip() for part in text.strip().removesuffix(",").split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidInput("seeds", f"must look like 3 or 3,5,8, got {text!r}")
    numbers = [int(part) for part in parts]
    return numbers if "," in text else numbers[0]


def _split(text: str) -> list[str]:
    """At the commas that stand in no list, table or quoted text."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _distinct(key: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput("vary", f"{key} needs a list of values, got {values!r}")
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    if not found:
        raise InvalidInput("vary", f"{key} has no values")
    return found


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    wanted = range(seeds) if isinstance(seeds, int) else list(seeds)
    for seed in wanted:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InvalidInput("seeds", f"must be whole numbers >= 0, got {seed!r}")
    if not wanted:
        raise InvalidInput("seeds", f"at least one is needed, got {seeds!r}")
    return tuple(dict.fromkeys(wanted))


def _cell(base: Config, settings: dict[str, Any]) -> Cell:
    layer = _with_ledger(base, _layer(base, settings))
    for key in _unused(base, layer):  # what others make use of and this cell does not
        section, name = key.split(".")
        layer.setdefault(section, {})[name] = known_keys()[key]["default"]
    try:
        return Cell(settings, load(base, layer))
    except InvalidInput as refused:
        return Cell(settings, None, refused)


def _with_ledger(base: Config, layer: dict[str, Any]) -> dict[str, Any]:
    """With a ledger for noise that follows results, which needs a filter, and without one else."""
    own = layer.get("privacy")
    if own == "none" or not base.privacy.enabled:
        return layer
    pace, mechanism = (
        (own or {}).get(key, getattr(base.privacy, key)) for key in ("pace", "mechanism")
    )
    ledger = OWN_LEDGER if pace == "plateau" and mechanism != "none" else None
    if ledger == base.privacy.ledger:
        return layer
    return {**layer, "privacy": {**(own or {}), "ledger": ledger}}


def _unused(base: Config, layer: Mapping[str, Any]) -> dict[str, str]:
    """The keys that the layer makes, or leaves, without effect, and what each one needs."""
    found: dict[str, str] = {}
    for name, section in SECTIONS.items():
        below, defaults = getattr(base, name), section().model_dump()
        is_off = name == "privacy" and not below.enabled
        values = defaults if is_off else below.model_dump()
        found |= unused_keys(name, {**values, **layer.get(name, {})}, defaults)
    return found


def _refuse_unused(key: str, base: Config, cells: Sequence[Cell]) -> None:
    """Refuse a key whose values make no difference in any cell."""
    default = known_keys().get(key, {}).get("default")
    changed = [cell for cell in cells if cell.config and cell.settings[key] != default]
    why = [_unused(base, _layer(base, cell.settings)).get(key) for cell in changed]
    if why and all(why):
        raise InvalidInput(key, str(why[0]))


def _layer(base: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as tables. An option changes alone: those beside it stay as in the base."""
    layer: dict[str, Any] = {}
    for key, value in settings.items():
        if "." not in key:
            layer[key] = value
            continue
        section, name, *deeper = key.split(".")
        table = layer.setdefault(section, {})
        if deeper and name not in table:
            table[name] = copy.deepcopy(getattr(getattr(base, section), name))
        for step in deeper:
            inner = table.get(name)
            table[name] = inner if isinstance(inner, dict) else {}
            table, name = table[name], step
        table[name] = value
    return layer


def _require_one(cells: Iterable[Cell]) -> None:
    asked = list(cells)
    if all(cell.refused for cell in asked):
        refused = asked[0].refused
        assert refused is not None
        raise refused
