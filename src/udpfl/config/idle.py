"""Keys that count only beside another one, so that none is set and quietly ignored.

A configuration that was written out holds every key, and one that is at its default asks for
nothing: only a value that somebody changed can be idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Need:
    """The key of the same section that decides, and the values of it that make use of this one."""

    key: str
    values: tuple[str, ...] = ()
    """Empty where any value does, as long as there is one."""

    def met(self, section: Mapping[str, Any]) -> bool:
        """Whether the section makes use of the key."""
        value = section[self.key]
        return value in self.values if self.values else value is not None


NEEDS: dict[str, dict[str, Need]] = {
    "data": {
        "alpha": Need("partition", ("dirichlet",)),
        "shards": Need("partition", ("shards",)),
        "by": Need("partition", ("column",)),
        "exponent": Need("partition", ("power-law",)),
    },
    "privacy": {
        "clip_rate": Need("clip_quantile"),
        "clip_share": Need("clip_quantile"),
        "pace_ratio": Need("pace", ("increasing", "decaying")),
    },
    "training": {"final_learning_rate": Need("schedule", ("linear", "cosine"))},
}


def idle(
    name: str, section: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The keys of a section that were changed to no effect, in full, and what each one needs."""
    for key, need in NEEDS.get(name, {}).items():
        if section[key] == defaults[key] or need.met(section):
            continue
        other = f"{name}.{need.key}"
        wanted = " or ".join(f'"{value}"' for value in need.values)
        why = f"is {wanted}, and it is {section[need.key]!r}" if wanted else "is set"
        rest = "out" if defaults[key] is None else f"at {defaults[key]!r}"
        use = f"{section[key]!r} has no use unless {other} {why}"
        yield f"{name}.{key}", f"{use}; do that, or leave it {rest}"
