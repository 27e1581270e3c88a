"""What a configuration may hold, for people and for programs, told from the models themselves.

The same for other files that are made of sections, such as the policy of a site.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

import tomli_w

from udpfl.config.models import Config
from udpfl.config.section import Section


def schema() -> dict[str, Any]:
    """The JSON schema of the configuration, for editors and other programs."""
    return Config.model_json_schema()


def example(kind: type[Section] = Config, title: str = "Every key, at its default.") -> str:
    """A file with every key at its default, explained in comments; of others with an example."""
    sections = sections_of(kind)
    lines = _comment(title)
    for key, field in known_keys(kind).items():
        section, _, name = key.rpartition(".")
        if key in sections:
            continue
        if section and f"[{section}]" not in lines:
            about = inspect.getdoc(sections[section]) or ""
            lines += ["", *_comment(about.replace("\n\n", " ")), f"[{section}]"]
        shown = field.get("default", field.get("examples", [None])[0])
        if shown == {} and "examples" in field:  # an empty table shows nothing of what it may hold
            shown = None
        unset = "; not set by default" if shown is None else ""
        lines += ["", *_comment(field["description"])]
        lines += _comment(f"Allowed: {allowed(field)}{unset}.")
        lines.append(
            f"# {_assignment(name, field['examples'][0])}"
            if shown is None
            else _assignment(name, shown)
        )
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")


def _assignment(name: str, value: Any) -> str:
    return f"{name} = {_written(value)}"


def _written(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(_assignment(key, own) for key, own in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return tomli_w.dumps({"value": value}).strip().removeprefix("value = ")


@functools.cache
def known_keys(kind: type[Section] = Config) -> dict[str, dict[str, Any]]:
    """The JSON schema of every key, sections included, by its dotted name."""
    keys = dict(kind.model_json_schema()["properties"])
    for section, model in sections_of(kind).items():
        for name, field in model.model_json_schema()["properties"].items():
            keys[f"{section}.{name}"] = field
    return keys


def sections_of(kind: type[Section]) -> dict[str, type[Section]]:
    """The keys of a file that are tables with keys of their own."""
    kinds = {name: field.annotation for name, field in kind.model_fields.items()}
    return {
        name: own
        for name, own in kinds.items()
        if isinstance(own, type) and issubclass(own, Section)
    }


def allowed(field: Mapping[str, Any], noun: str = "a {}") -> str:
    """What a key may be, in words."""
    match field:
        case {"anyOf": kinds}:
            return " or ".join(allowed(kind) for kind in kinds if kind.get("type") != "null")
        case {"enum": values}:
            return " or ".join(f'"{value}"' for value in values)
        case {"const": value}:
            return f'"{value}"'
        case {"pattern": pattern}:
            choices = (
                pattern.removeprefix("^(").removesuffix(")$").replace("[0-9]+", "N").split("|")
            )
            return " or ".join(f'"{own}"' for own in choices)
        case {"type": "string"}:
            return "text"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "array", "items": items}:
            kind = "a list" if not field.get("minItems") else "a non-empty list"
            return f"{kind} of {allowed(items, noun='{}s')}"
        case {"propertyNames": {"enum": names}, "maxProperties": 1}:
            return f"a table with one number, called {' or '.join(names)}"
        case {"minimum": low, "maximum": high} if low == high:
            return str(low)
        case {"type": "integer" | "number" as kind}:
            signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=",
                     "exclusiveMaximum": "<"}  # fmt: skip
            bounds = [f"{sign} {field[bound]}" for bound, sign in signs.items() if bound in field]
            word = "whole number" if kind == "integer" else "number"
            if kind == "number" and len(bounds) < 2:
                word = "finite number"
            return f"{noun.format(word)} {' and '.join(bounds)}"
    return "a table"
