"""Stages: what happens to a round's messages, and to the model, between clients and next request.

Each is one file. They run in the order in which a run lists them; whoever adds noise to what others
may not see comes first. A stage sees messages and the server's state, never records, accounts or
budgets.
"""

from udpfl.federation.stages.base import Stage

BUILT_IN: dict[str, type[Stage]] = {
    # "name": Class,
}
"""Stages by the names that `training.stages` may use; all others are turned on by settings."""

__all__ = ["BUILT_IN", "Stage"]
