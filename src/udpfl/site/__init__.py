"""A site of a federation: its policy, and the gate that holds every request against it.

No transport is in here. A framework hands a request to the gate and gets a charged message or a
refusal back; `udpfl.deploy` does it on Flower.
"""

from udpfl.site.gate import Gate
from udpfl.site.policy import Policy
from udpfl.site.settings import Proposal, settings_to_propose
from udpfl.site.wire import SiteAnswer, SiteFacts, SiteRequest

__all__ = [
    "Gate",
    "Policy",
    "Proposal",
    "SiteAnswer",
    "SiteFacts",
    "SiteRequest",
    "settings_to_propose",
]
