"""What statements and the log say about shuffling: no guarantee becomes smaller by it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from udpfl.accounting import Shuffled
from udpfl.accounting.shuffling import conditions_missing
from udpfl.config import Config
from udpfl.federation.calibration import nothing_claimed
from udpfl.federation.plan import ReleasePlan

log = logging.getLogger(__name__)


def shuffle_notes(
    config: Config, plans: Sequence[ReleasePlan], keeps_state: bool = False
) -> tuple[str, ...]:
    """What a statement says about shuffling. It is logged as well, with what gives senders away.

    `keeps_state` says whether the method's clients remember earlier rounds.
    """
    if not config.training.shuffle:
        return ()
    _warn_of_marks(plans, keeps_state)
    privacy = config.privacy
    asked = [plan for plan in plans if plan.release is not None]
    if nothing_claimed(config) or not asked:
        return ()
    note = f"shuffled: no amplification because {_reason(config, asked[0])}"
    if privacy.accounting == "scalar":
        note = (
            "shuffled: the nominal ε may count on the paper's lemma, whose conditions do not hold "
            "here; the guarantee beside it never does"
            if asked[0].shuffled
            else "shuffled: no amplification, not even a nominal one, because a message holds "
            f"{asked[0].sampled[1] * asked[0].trainings} releases and the lemma is about one"
        )
    log.warning("%s", note)
    return (note,)


def _reason(config: Config, plan: ReleasePlan) -> str:
    """Which conditions the messages of this run do not meet."""
    assert plan.release is not None
    among = config.training.clients_per_round or config.data.clients
    missing = conditions_missing(Shuffled(plan.release, among))
    assert missing, "what is charged counts on no amplification"
    return " and ".join(missing)


def _warn_of_marks(plans: Sequence[ReleasePlan], keeps_state: bool) -> None:
    """Say by what a message can be told from others although its name is gone."""
    if len({plan.declared_size for plan in plans}) > 1:
        log.warning(
            "declared sizes differ and stay with the shuffled messages as their weights: whoever "
            "knows them can tell messages apart; set data.declared_sizes to one number for all"
        )
    if len({plan.release for plan in plans if plan.release is not None}) > 1:
        log.warning(
            "clients add different noise, whose size can be read off a shuffled message: give all "
            "of them the same budget, mechanism, clip and number of rounds to be anonymous"
        )
    if keeps_state:
        # scaffold sends c_i+ - c_i, and in c_i is what the client sent before, noise and all.
        log.warning(
            "clients of this method remember earlier rounds, so a shuffled message can be linked "
            "to the one that the same client sent before; fedavg and fedprox remember nothing"
        )
