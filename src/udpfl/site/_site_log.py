"""The log of a site: one line of JSON for every request, and why it was refused."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from udpfl.errors import UdpflError
from udpfl.writing import append_line

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SiteLog:
    """Appends to a file that stays at the site."""

    path: Path

    def note(self, what: str, **about: Any) -> None:
        """One more line. A disk that is full keeps no line, and stops nobody."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            append_line(self.path, json.dumps({"time": now, "what": what, **about}))
        except UdpflError as error:
            log.warning("%s: %s", what, error)
