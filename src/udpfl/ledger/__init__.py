"""Who may spend what, and who has: accounts, charges, the hash chain and stored answers."""

from udpfl.ledger.accounts import Account
from udpfl.ledger.charges import Charge, Entry
from udpfl.ledger.ledger import Ledger

__all__ = ["Account", "Charge", "Entry", "Ledger"]
