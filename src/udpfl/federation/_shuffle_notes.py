"""What statements and the log say about shuffling: no guarantee becomes smaller by it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from udpfl.accounting import PureDP, Shuffled
from udpfl.accounting.randomised import Randomised
from udpfl.accounting.shuffling import conditions_missing
from udpfl.config import Config
from udpfl.federation._calibration import why_nothing_is_claimed
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
    if why_nothing_is_claimed(config) or not asked:
        return ()
    note = f"shuffled: no amplification because {_reason(config, asked[0])}"
    if privacy.accounting == "scalar" and asked[0].shuffled:
        several = asked[0].sampled[1] * asked[0].trainings
        held = f", applied to all {several:,} releases of a message at once" if several > 1 else ""
        note = (
            f"shuffled: the nominal ε may count on the paper's lemma{held}, whose conditions do "
            "not hold here; the guarantee beside it never does"
        )
    log.warning("%s", note)
    return (note,)


def _reason(config: Config, plan: ReleasePlan) -> str:
    """Which conditions the messages of this run do not meet."""
    assert plan.release is not None
    among = config.training.clients_per_round or config.data.clients
    if isinstance(plan.release, Randomised):  # holds for clients whose data is replaced, too
        own = plan.release.randomiser
        whole = PureDP(own.epsilon * own.answers, "client", "replace-one", own.discrete)
        missing = conditions_missing(Shuffled(whole, among, identical=True))
        return " and ".join(missing) or "what is charged has to hold without a shuffler"
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
        log.warning(
            "clients of this method remember earlier rounds, so a shuffled message can be linked "
            "to the one that the same client sent before; a method whose clients keep no state "
            "cannot be linked like this"
        )
