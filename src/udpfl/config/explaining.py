"""What is wrong with a configuration, in words: the key, the value, and what would be right."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from udpfl.config.documents import allowed, known_keys
from udpfl.config.section import Unknown, refusal
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


def explained(error: ValidationError, values: Mapping[str, Any]) -> InvalidInput:
    """One error for all that is wrong with the values."""
    keys = known_keys()
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
            problems.update(_unknown(f"{key}.{one['loc'][-1]}".removeprefix("."), one["input"]))
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


def _unknown(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _unknown(f"{key}.{name}", inner)
        return
    yield key, Unknown(f"unknown key (value {value!r}); {hint(key)}")


def hint(key: str) -> str:
    """What to write in place of a key that there is not."""
    table, dot, option = key.partition(".")
    if table == "options" and dot and option:
        options = [f"{known}.{option}" for known in known_keys() if known.endswith(".options")]
        return f"did you mean {', '.join(options[::-1])}?"
    near = nearest(key)
    return f"did you mean {near}?" if near else "`udpfl config example` shows all keys"


def nearest(key: str) -> str | None:
    """The key that was probably meant: its last part decides, the section breaks ties."""
    leaf = key.rpartition(".")[2].replace("-", "_").lower()
    if leaf in SYNONYMS:
        return SYNONYMS[leaf]
    leaves = [known.rpartition(".")[2] for known in known_keys()]
    found = difflib.get_close_matches(leaf, leaves, n=1)
    same = [known for known in known_keys() if known.rpartition(".")[2] in found]
    return max(same, key=lambda known: difflib.SequenceMatcher(None, key, known).ratio(),
               default=None)  # fmt: skip
