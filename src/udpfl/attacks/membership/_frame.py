"""What membership attacks on the final model have in common: records, shadow models, figures."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from udpfl.attacks.base import Attack, Figure, Findings, Progress
from udpfl.attacks.membership._evidence import Evidence, gather
from udpfl.attacks.membership._options import QueryOptions, RecordOptions, ShadowOptions
from udpfl.attacks.membership._verdict import ONE_TRAINING, findings
from udpfl.attacks.membership.statistics import Scores
from udpfl.attacks.pool import Pool
from udpfl.attacks.shadows import ShadowModels, shadow_models
from udpfl.attacks.target import Target
from udpfl.errors import InvalidInput
from udpfl.mechanisms.arrays import Floats

Records = TypeVar("Records", bound=RecordOptions)
Shadows = TypeVar("Shadows", bound=ShadowOptions)


@dataclass(frozen=True, eq=False)
class Scored:
    """How sure an attack is of each record that it was a member."""

    values: Floats
    """The larger, the surer [n]."""
    threshold: float | None
    """From which value on the attack says "member"."""
    notes: tuple[str, ...]
    """What is to be known of these values."""
    more: tuple[Figure, ...] = ()
    """Further figures."""


class RecordAttack(Attack[Records]):
    """Scores members of the run, and as many held-out records, by the final model."""

    kind = "membership"

    def find(self, target: Target, progress: Progress) -> Findings:
        pool = Pool.of(target, self.options.records, self.seed)
        found = self.scored(target, pool, progress)
        return findings(
            self.name,
            "the final model",
            pool.described,
            target.privacy,
            Scores(found.values, pool.is_member, found.threshold),
            seed=self.seed,
            notes=(ONE_TRAINING, *found.notes),
            more=found.more,
        )

    @abstractmethod
    def scored(self, target: Target, pool: Pool, progress: Progress) -> Scored:
        """A score for every record of the pool."""


class ShadowAttack(RecordAttack[Shadows]):
    """Compares what the final model says of records with what shadow models say of them."""

    fewest_shadows: ClassVar[int] = 2
    """With fewer it cannot work."""

    def find(self, target: Target, progress: Progress) -> Findings:
        fewest = self.fewest_shadows
        if self.options.shadows < fewest:
            raise InvalidInput(
                "shadows", f"{self.name} needs {fewest} at least: a spread on either side"
            )
        return super().find(target, progress)

    def scored(self, target: Target, pool: Pool, progress: Progress) -> Scored:
        shadows = shadow_models(target, pool, self.options.shadows, self.seed, progress)
        return self.compared(self.asked(target, pool, shadows, progress), progress)

    def asked(
        self, target: Target, pool: Pool, shadows: ShadowModels, progress: Progress
    ) -> Evidence:
        """What every model says of every record."""
        queries = self.options.queries if isinstance(self.options, QueryOptions) else 1
        return gather(target, pool, shadows, queries, progress)

    @abstractmethod
    def compared(self, evidence: Evidence, progress: Progress) -> Scored:
        """A score for every record, from what the models say of it."""
