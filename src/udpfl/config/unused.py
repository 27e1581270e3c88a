"""Keys that have an effect only when another key has certain values.

A key that is set and has no effect is refused. A key at its default is never refused, because a
configuration that was written by `dump` holds every key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Need:
    """The other key of the same section, and the values of it for which this key has an effect."""

    key: str
    values: tuple[str, ...] = ()
    """Empty: any value, as long as the other key is set."""

    def met(self, section: Mapping[str, Any]) -> bool:
        """Whether the key has an effect in this section."""
        value = section[self.key]
        return value in self.values if self.values else value is not None


NEEDS: dict[str, dict[str, Need]] = {
    "data": {
        "alpha": Need("partition", ("dirichlet",)),
        "shards": Need("partition", ("shards",)),
        "by": Need("partition", ("column",)),
        "exponent": Need("partition", ("power-law",)),
        "rows_per_person": Need("person"),
    },
    "privacy": {
        "clip_rate": Need("clip_quantile"),
        "clip_share": Need("clip_quantile"),
        "reference": Need("harmonize", ("match",)),
        "pace_ratio": Need("pace", ("increasing", "decaying", "plateau")),
        "pace_patience": Need("pace", ("plateau",)),
        "pace_follows": Need("pace", ("plateau",)),
    },
    "training": {
        "final_learning_rate": Need("schedule", ("linear", "cosine")),
        "batches": Need("local_epochs"),
        "sample_per": Need("local_epochs"),
    },
}


def unused_keys(
    name: str, section: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The full names of keys that were changed and have no effect, each with what it needs."""
    for key, need in NEEDS.get(name, {}).items():
        if section[key] == defaults[key] or need.met(section):
            continue
        other = f"{name}.{need.key}"
        wanted = " or ".join(f'"{value}"' for value in need.values)
        why = f"is {wanted}, but it is {section[need.key]!r}" if wanted else "is set"
        rest = "remove it" if defaults[key] is None else f"leave it at {defaults[key]!r}"
        use = f"{section[key]!r} has no effect unless {other} {why}"
        yield f"{name}.{key}", f"{use}; change {other}, or {rest}"
