"""The settings of a run that a server may propose, and what a site makes of them.

A server proposes the model, the method, the rounds and the noise. The records, the budget, the
device and the ledger are the site's own: settings about these are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udpfl.config import Config, PrivacyConfig, TrainingConfig, load, per_client
from udpfl.errors import InvalidInput
from udpfl.federation.selection import Schedule, draw_schedule

_NOT_PROPOSED = {
    "privacy": {"ledger", "exhausted", "pace_patience", "pace_follows"},
    "training": {
        "stages", "evaluate_every", "checkpoint_every", "target", "lanes", "chunk", "memory",
        "precision",
    },
}  # fmt: skip
_IF_SAID = ("epsilon", "delta", "mechanism")
"""What a site decides by its policy, unless the server asks for something."""
_PROPOSED = {
    "data": {"clients", "declared_sizes"},
    "model": {"name", "options"},
    "privacy": PrivacyConfig.model_fields.keys() - _NOT_PROPOSED["privacy"],
    "training": TrainingConfig.model_fields.keys() - _NOT_PROPOSED["training"],
}


def settings_to_propose(config: Config, sizes: Sequence[int] = ()) -> dict[str, Any]:
    """What a server sends of its configuration.

    Every key is spelled out, so that a site with other defaults reads the same. Left out are
    budget and mechanism, unless the configuration sets them: each site has its own.

    Args:
        config: As it was read from a file or a mapping: a default that was filled in is not sent.
        sizes: What each client declares, in their order.

    Returns:
        Plain data.

    Example:
        >>> from udpfl.config import load
        >>> from udpfl.site import settings_to_propose
        >>> sent = settings_to_propose(load({"privacy": {"epsilon": 2.0}}))
        >>> sent["privacy"]["epsilon"], "delta" in sent["privacy"]
        (2.0, False)
    """
    if not config.privacy.enabled:
        raise InvalidInput("privacy", "a site takes part in private runs only")
    whole = config.model_dump(exclude_none=True)
    said = config.privacy.model_fields_set
    sent = {name: {k: v for k, v in whole[name].items() if k in _PROPOSED[name]} for name in whole
            if name in _PROPOSED}  # fmt: skip
    for key in _IF_SAID:
        if key not in said:
            del sent["privacy"][key]
    if config.privacy.unit == "person":  # a site knows whose its rows are
        sent["privacy"]["unit"] = "record"
    if config.training.local_epochs is not None:
        del sent["training"]["local_steps"]
    sent["data"] = {"clients": config.data.clients}
    if sizes:
        sent["data"]["declared_sizes"] = list(sizes)
    return {"seed": config.seed, **sent}


@dataclass(frozen=True)
class Proposal:
    """What a server proposes to a site, read and understood.

    Example:
        >>> from udpfl.site import Proposal
        >>> Proposal.read({"seed": 1, "training": {"rounds": 5}}).config.training.rounds
        5
    """

    config: Config
    """The server's settings; what it does not say is at its default."""
    said: frozenset[str]
    """Which of epsilon, delta and mechanism it asks for."""

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Proposal:
        """Read what a server sent.

        Raises:
            InvalidInput: A setting is unknown, wrong, or not for a server to decide.
        """
        for name, value in settings.items():
            if name == "seed":
                continue
            if name not in _PROPOSED:
                raise InvalidInput(str(name)[:40], "is not for a server to decide")
            if not isinstance(value, Mapping):
                raise InvalidInput(name, "must be a table")
            for key in value:
                if key not in _PROPOSED[name]:
                    raise InvalidInput(f"{name}.{key}"[:80], "is not for a server to decide")
        privacy = settings.get("privacy", {})
        said = frozenset(key for key in _IF_SAID if key in privacy)
        # Noise that follows results is added up by the filter of the site's ledger.
        own = {"ledger": "of the site", "pace_follows": "update"}
        follows = privacy.get("pace") == "plateau"
        return cls(load(dict(settings), {"privacy": own} if follows else {}), said)

    def schedule_of(self, client: int) -> Schedule:
        """The rounds of the run, as if this client were the only one."""
        return [(0,) if client in chosen else () for chosen in draw_schedule(self.config)]

    def own(self, key: str, client: int) -> Any:
        """A setting of the section privacy that clients may have of their own."""
        return per_client(getattr(self.config.privacy, key), self.config.data.clients)[client]

    def others(self, client: int) -> tuple[int, ...]:
        """The declared sizes of all other clients, as far as the server says them."""
        sizes = self.config.data.declared_sizes
        known = sizes if isinstance(sizes, list) else []
        return tuple(own for number, own in enumerate(known) if number != client)

    def penalty(self, client: int) -> float:
        """How strongly this client is pulled towards the model of the largest budget."""
        budgets = per_client(self.config.privacy.epsilon, self.config.data.clients)
        largest = max(budgets)
        return self.config.training.penalty * (largest - budgets[client]) / largest
