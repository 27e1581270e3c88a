"""Two statements about the same releases, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from udpfl.accounting.statement import PrivacyStatement

_TOLERANCE = 1e-9
"""Relative: sums in another order may differ in their last digits."""
_NUMBERS = (("ε", "epsilon"), ("δ", "delta"), ("guaranteed ε", "vector_epsilon"))


@dataclass(frozen=True)
class Difference:
    """One thing that is stated and is not so."""

    said: str
    contradicts: bool = True
    """Whether it cannot be explained by what the folder leaves open."""
    too_small: bool = True
    """Whether less is stated than was spent, or something else altogether."""
    is_wording: bool = False
    """Whether it is about words, which may change from version to version, and not numbers."""

    def doubted(self, reason: str) -> Difference:
        """The same where spending may have grown until the run ended, for this reason."""
        return self if self.too_small else replace(self, said=reason, contradicts=False)

    def by(self, version: str, here: str) -> Difference:
        """The same where this version of udpfl stated it: another one may have had other words."""
        if not self.is_wording or version == here:
            return self
        said = f"{self.said}, perhaps because udpfl {version} wrote it and this is udpfl {here}"
        return replace(self, said=said, contradicts=False)


def differences(
    where: str, stated: PrivacyStatement, found: PrivacyStatement, *, all_notes: bool = True
) -> Iterator[Difference]:
    """What `where` states otherwise than it was found to be.

    Without `all_notes` it may have notes that `found` does not know of, but none may be missing.
    """
    for name in ("kind", "unit", "neighbours", "composition", "trusts_server", "accountant"):
        said, own = getattr(stated, name), getattr(found, name)
        if said != own:
            yield Difference(
                f"{where} says {name} “{said}”, but recomputed it is “{own}”",
                is_wording=name == "accountant",
            )
    if stated.kind == found.kind == "none":
        return
    for sign, name in _NUMBERS:
        said, own = getattr(stated, name), getattr(found, name)
        if not math.isclose(said, own, rel_tol=_TOLERANCE):
            yield Difference(
                f"{where} says {sign} = {said:.10g}, but recomputed it is {own:.10g}",
                too_small=not said > own,
            )
    for note in found.remarks:
        if note not in stated.remarks:
            yield Difference(f"{where} leaves out the note “{note}”", is_wording=True)
    for note in stated.remarks if all_notes else ():
        if note not in found.remarks:
            yield Difference(
                f"{where} has the note “{note}”, which is not recomputed", is_wording=True
            )
