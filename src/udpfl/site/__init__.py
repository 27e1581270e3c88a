"""A site of a federation: its policy, and the gate that holds every request against it.

No transport is in here. A framework hands a request to the gate and gets a charged message or a
refusal back; `udpfl.deploy` does it on Flower. Names are imported when they are first used: whoever
only passes requests on to the site's service loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udpfl.site.gate import Gate
    from udpfl.site.policy import Policy
    from udpfl.site.settings import Proposal, settings_to_propose
    from udpfl.site.wire import SiteAnswer, SiteFacts, SiteRequest

_PLACES = {
    "Gate": "gate",
    "Policy": "policy",
    "Proposal": "settings",
    "SiteAnswer": "wire",
    "SiteFacts": "wire",
    "SiteRequest": "wire",
    "settings_to_propose": "settings",
}

__all__ = [
    "Gate",
    "Policy",
    "Proposal",
    "SiteAnswer",
    "SiteFacts",
    "SiteRequest",
    "settings_to_propose",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module 'udpfl.site' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"udpfl.site.{_PLACES[name]}"), name)
    return value
