"""How a configuration is read from files, mappings and overrides, and written to read back."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from udpfl.config.explaining import explained
from udpfl.config.models import Config
from udpfl.config.section import Section
from udpfl.errors import InvalidInput

Layer = str | Path | Mapping[str, Any] | Config


def read(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file, not yet checked."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput("config", f"there is no file {str(path)!r}") from None
    except UnicodeDecodeError:
        raise InvalidInput("config", f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidInput("config", f"cannot read {path}: {error.strerror}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).rpartition(" (at ")
        found = re.match(r"line (\d+)", place)
        line = found[1] if found else max(1, len(text.splitlines()))
        raise InvalidInput("config", f"{path} line {line}: {reason}") from None


def apply(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The values with overrides like "training.rounds=5" put in, the last one winning."""
    result = dict(values)
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        *tables, name = key.split(".")
        if not equals or not all([*tables, name]):
            raise InvalidInput("set", f"must look like training.rounds=5, got {override!r}")
        value = _parsed(text)
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
                below = values.get(key)
                value = {**below, **value} if isinstance(below, Mapping) else dict(value)
            values[key] = value
    values = apply(values, overrides)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise explained(error, values) from None


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
    """The configuration as TOML, every key spelled out; keys that are not set are left out."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))
