"""How a configuration is read from files, mappings and overrides, and written to read back."""

from __future__ import annotations

import datetime
import logging
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from udpfl.config.explaining import validated
from udpfl.config.models import SECTIONS, Config
from udpfl.config.section import Section
from udpfl.errors import InvalidInput

log = logging.getLogger(__name__)

Layer = str | Path | Mapping[str, Any] | Config


def read(path: str | Path, parameter: str = "config") -> dict[str, Any]:
    """The tables of a TOML file, not yet checked; `parameter` is what a refusal is about."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(parameter, f"there is no file {str(path)!r}") from None
    except UnicodeDecodeError:
        raise InvalidInput(parameter, f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidInput(parameter, f"cannot read {path}: {error.strerror}") from None
    if Path(path).suffix.lower() in (".csv", ".tsv"):
        raise InvalidInput(
            parameter, f"{path} is a table: `udpfl init {path}` writes a configuration for it"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).rpartition(" (at ")
        found = re.match(r"line (\d+)", place)
        line = found[1] if found else max(1, len(text.splitlines()))
        raise InvalidInput(parameter, f"{path} line {line}: {reason}") from None


def apply(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The values with overrides like "training.rounds=5" put in, the last one winning.

    An override that names another data set, model or method takes the options of the old one out.
    """
    result, assigned = dict(values), [_assignment(override) for override in overrides]
    named = {key: value for key, value in assigned if key in _NAMES}
    for key, value in named.items():
        section = key.partition(".")[0]
        if isinstance(result.get(section), Mapping):
            result[section] = _without_options(section, result[section], value)
    for key, value in assigned:
        *tables, name = key.split(".")
        if tables[:1] == ["privacy"] or key == "privacy":
            _refuse_contradiction(result.get("privacy"), {name: value} if tables else value)
        table = result
        for step in tables:
            inner = table.get(step)
            # Copied, so that the caller's tables stay as they were.
            table[step] = dict(inner) if isinstance(inner, Mapping) else {}
            table = table[step]
        table[name] = value
    return result


def _assignment(override: str) -> tuple[str, Any]:
    """The key and the value of an override."""
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not all(key.split(".")):
        raise InvalidInput("set", f"must look like training.rounds=5, got {override!r}")
    return key, _parsed(text)


OWN = "own"
"""Stands for a model or data set that was handed over in Python; options are about that one."""
_NAMES = {"data.name": "data set", "model.name": "model", "training.algorithm": "method"}
"""Keys that name something which has options of its own, in the same section."""


def _without_options(section: str, below: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """A section without the options of what it named before, where another name is put over it."""
    key = next(own for own in _NAMES if own.startswith(f"{section}."))
    leaf = key.partition(".")[2]
    old = below.get(leaf, SECTIONS[section].model_fields[leaf].default)
    options = below.get("options")
    if not options or name in (old, OWN):
        return dict(below)
    listed = ", ".join(options) if isinstance(options, Mapping) else repr(options)
    log.warning(
        "%s is %s now, so the options of the %s %s (%s.options: %s) are left out",
        *(key, name, _NAMES[key], old, section, listed),
    )
    return {own: value for own, value in below.items() if own != "options"}


def _refuse_contradiction(below: Any, above: Any) -> None:
    """Privacy is not switched on or off by the way: whoever says both has to say which."""
    if below == "none" and isinstance(above, Mapping) and "mechanism" not in above:
        key = next(iter(above), "epsilon")
        raise InvalidInput(
            f"privacy.{key}", 'privacy is "none"; set privacy.mechanism to turn privacy on'
        )
    if above == "none" and isinstance(below, Mapping) and below.get("ledger") is not None:
        raise InvalidInput(
            "privacy.ledger", f"a run without privacy cannot be charged to {below['ledger']!r}"
        )


def _parsed(text: str) -> Any:
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = tables.pop("value")
    # No key takes a date, but a folder may be called 2024-01-31.
    dated = isinstance(value, datetime.date | datetime.time)
    return text if tables or dated else value


def load(*layers: Layer | None, overrides: Iterable[str] = ()) -> Config:
    """The layers, each over those before it, under the overrides; defaults for the rest.

    A layer is a file, a mapping or a `Config`. Sections are merged key by key. A `Config`, like a
    section that is a model and not a table, says every key, so nothing below shows through it.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        for key, value in _tables(layer).items():
            if key == "privacy":
                _refuse_contradiction(values.get(key), value)
            if isinstance(value, Mapping):
                value = _merged(key, values.get(key), value)
            values[key] = value
    return validated(Config, apply(values, overrides))


def _merged(section: str, below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    """A section over the one below it. Options go with the name that they were given with."""
    if not isinstance(below, Mapping):
        return dict(above)
    leaf = next((own.partition(".")[2] for own in _NAMES if own.startswith(f"{section}.")), None)
    if leaf is not None and leaf in above and "options" not in above:
        below = _without_options(section, below, above[leaf])
    return {**below, **above}


def _tables(layer: Layer | None) -> dict[str, Any]:
    match layer:
        case None:
            return {}
        case str() | Path():
            return read(layer)
        case Config():
            return layer.model_dump()
        case Mapping():
            return {
                key: value.model_dump() if isinstance(value, Section) else value
                for key, value in dict(layer).items()
            }
    raise InvalidInput("config", f"must be a file, a mapping or a Config, got {layer!r}")


def dump(config: Config) -> str:
    """The configuration as TOML, every key spelled out.

    Left out are keys that are not set, and local_steps where local_epochs takes its place.
    """
    values = config.model_dump(exclude_none=True)
    if config.training.local_epochs is not None:
        del values["training"]["local_steps"]
    return tomli_w.dumps(values)
