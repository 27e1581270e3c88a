"""What is wrong with a configuration, in words: the key, the value, and what would be right.

The same for other files that are made of sections, such as the policy of a site.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from udpfl.config.documents import allowed, known_keys, sections_of
from udpfl.config.models import Config
from udpfl.config.section import Section, refusal
from udpfl.errors import InvalidInput

# What other libraries call our keys.
SYNONYMS = {
    "batch_size": "training.sampling_rate",
    "clip_norm": "privacy.clip",
    "dataset": "data.name",
    "eps": "privacy.epsilon",
    "epochs": "training.local_epochs",
    "fraction_fit": "training.clients_per_round",
    "gpu": "device",
    "lr": "training.learning_rate",
    "max_grad_norm": "privacy.clip",
    "momentum": "training.server_momentum",
    "noise": "privacy.mechanism",
    "noise_multiplier": "privacy.epsilon",
    "num_clients": "data.clients",
    "num_rounds": "training.rounds",
    "output": "out",
}


S = TypeVar("S", bound=Section)


def validated(kind: type[S], values: Mapping[str, Any]) -> S:
    """Plain tables as a section.

    Raises:
        InvalidInput: A key is missing, unknown or wrong; all of them at once.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise explained(error, values, kind) from None


def explained(
    error: ValidationError, values: Mapping[str, Any], kind: type[Section] = Config
) -> InvalidInput:
    """One error for all that is wrong with the values of such a file."""
    keys = known_keys(kind)
    problems: dict[str, str] = {}
    for one in error.errors(include_url=False):
        cause = one.get("ctx", {}).get("error")
        if isinstance(cause, InvalidInput):
            problems.update(cause.problems)
            continue
        # Between the keys a location also names branches of unions; those are nobody's business.
        key = ""
        for part in one["loc"]:
            deeper = f"{key}.{part}".removeprefix(".")
            key = deeper if deeper in keys else key
        if one["type"] == "extra_forbidden":
            unknown = f"{key}.{one['loc'][-1]}".removeprefix(".")
            problems.update(_unknown(unknown, one["input"], kind))
        elif one["type"] == "missing":
            problems[_key(one["loc"])] = "is missing, and has no default"
        elif one["type"] == "invalid_key":
            problems[key or "config"] = f"keys must be text, got {one['input']!r}"
        elif cause is not None:
            problems[key] = str(cause)
        else:
            value = functools.reduce(lambda table, name: table[name], key.split("."), values)
            problems[key] = f"must be {allowed(keys[key])}, got {value!r}"
    # A section that is also refused as a whole ("or else none") says nothing beyond its keys.
    inner = {key.partition(".")[0] for key in problems if "." in key}
    return refusal((key, why) for key, why in problems.items() if key not in inner)


def _key(location: tuple[int | str, ...]) -> str:
    """The dotted name of a key that is not there."""
    return ".".join(str(part) for part in location)


def _unknown(key: str, value: Any, kind: type[Section]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _unknown(f"{key}.{name}", inner, kind)
        return
    yield key, f"unknown key (value {value!r}); {hint(key, kind)}"


def hint(key: str, kind: type[Section] = Config) -> str:
    """What to write in place of a key that there is not."""
    known = known_keys(kind)
    table, dot, option = key.partition(".")
    if table == "options" and dot and option:
        options = [f"{own}.{option}" for own in known if own.endswith(".options")]
        return f"did you mean {', '.join(options[::-1])}?"
    if near := nearest(key, kind):
        return f"did you mean {near}?"
    if kind is Config:
        return "`udpfl config example` shows all keys"
    return f"known keys are {', '.join(own for own in known if own not in sections_of(kind))}"


def nearest(key: str, kind: type[Section] = Config) -> str | None:
    """The key that was probably meant: its last part decides, the section breaks ties."""
    leaf = key.rpartition(".")[2].replace("-", "_").lower()
    if kind is Config and leaf in SYNONYMS:
        return SYNONYMS[leaf]
    keys = known_keys(kind)
    leaves = [known.rpartition(".")[2] for known in keys]
    found = difflib.get_close_matches(leaf, leaves, n=1)
    same = [known for known in keys if known.rpartition(".")[2] in found]
    return max(same, key=lambda known: difflib.SequenceMatcher(None, key, known).ratio(),
               default=None)  # fmt: skip
