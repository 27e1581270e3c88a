"""Two statements about the same releases, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from udpfl.accounting.statement import PrivacyStatement
from udpfl.ledger.charges import TRUST

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

    def doubted(self, reason: str) -> Difference:
        """The same where spending may have grown until the run ended, for this reason."""
        return self if self.too_small else replace(self, said=reason, contradicts=False)


def differences(
    where: str, stated: PrivacyStatement, found: PrivacyStatement
) -> Iterator[Difference]:
    """What `where` states otherwise than it was found to be; notes about the data are its own."""
    for name in ("kind", "unit", "neighbours", "composition"):
        said, own = getattr(stated, name), getattr(found, name)
        if said != own:
            yield Difference(f"{where} says {name} “{said}”, recomputed it is “{own}”")
    if stated.kind == found.kind == "none":
        return
    for sign, name in _NUMBERS:
        said, own = getattr(stated, name), getattr(found, name)
        if not math.isclose(said, own, rel_tol=_TOLERANCE):
            yield Difference(
                f"{where} says {sign} = {said:.10g}, recomputed it is {own:.10g}",
                too_small=not said > own,
            )
    if TRUST in found.notes and TRUST not in stated.notes:
        yield Difference(f"{where} does not say that the server is trusted")
