"""The grid of a comparison: the keys that vary, their values, and the cells that come of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from udpfl.comparison.axes import Pairs, axes_of, seeds_of
from udpfl.config import Config, load
from udpfl.config.documents import known_keys
from udpfl.config.models import SECTIONS
from udpfl.config.unused import unused_keys
from udpfl.errors import InvalidInput
from udpfl.federation.configured_names import refuse_unknown

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
    axes: tuple[tuple[str, ...], ...]
    """The keys by axis: those that go together are on one."""


def grid_of(
    base: Config,
    vary: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int],
    pairs: Pairs = (),
) -> Grid:
    """Every combination of the values over the base; values that go together count as one.

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
    axes = axes_of(vary, pairs)
    keys = tuple(key for axis in axes for key in axis.keys)
    cells = tuple(
        _cell(base, dict(zip(keys, chain(*steps), strict=True)))
        for steps in product(*(axis.values for axis in axes))
    )
    for axis in axes:
        for step in axis.values:
            wanted = dict(zip(axis.keys, step, strict=True))
            _require_one(cell for cell in cells if wanted.items() <= dict(cell.settings).items())
    _require_one(cells)
    for key in keys:
        _refuse_unused(key, base, cells)
    refuse_unknown(cell.config for cell in cells if cell.config is not None)
    return Grid(keys, cells, seeds_of(seeds), tuple(axis.keys for axis in axes))


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
