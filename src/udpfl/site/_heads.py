"""What a server is told of the last charge of a site, so that an older ledger is noticed.

The hash of a charge follows from the records, among other things: whoever knows all of them but one
could try candidates for that one until the hash fits. So what leaves the site is a code of the
hash, under a key that does not leave it.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from udpfl.errors import InvalidInput
from udpfl.ledger.chain import Head
from udpfl.ledger.ledger import Ledger
from udpfl.writing import write_secret

_BYTES = 32


class HeadCodes:
    """Codes of charges, and which of them the ledger can answer for.

    Args:
        path: Of the key, which is made where there is none. Without the old key, codes that a
            server has kept fit no charge: the site refuses them, as it does for a lost ledger.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            _write_key(path)
        self._key = path.read_bytes()
        if len(self._key) != _BYTES:
            raise InvalidInput("state", f"{str(path)!r} is damaged: it has {_BYTES} bytes")

    def of(self, head: Head) -> Head:
        """The number of a charge, and the code of its hash."""
        return Head(head.number, self._code(head) if head.number else "")

    def is_known(self, told: Head, ledger: Ledger) -> bool:
        """Whether a ledger holds the charge that this code was made of."""
        if not told.number:
            return True
        chain = ledger.chain_at(told.number)
        if chain is None:
            return False
        return hmac.compare_digest(told.chain, self._code(Head(told.number, chain)))

    def _code(self, head: Head) -> str:
        return hmac.digest(self._key, f"{head.number} {head.chain}".encode(), "sha256").hex()


def _write_key(path: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    write_secret(fresh, os.urandom(_BYTES))
    fresh.replace(path)
