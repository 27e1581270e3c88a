"""How far a deployed run is, by the folder at the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from udpfl.accounting.statement import shown
from udpfl.config import load
from udpfl.deploy._journal import Journal, Note
from udpfl.errors import InvalidInput
from udpfl.runs.files import has_ended, read_identity, read_metrics, read_summary
from udpfl.runs.names import CONFIG


@dataclass(frozen=True)
class SiteStatus:
    """What a site has said."""

    site: str
    seen: str | None = None
    """When it said something last."""
    round: int | None = None
    said: str = "nothing yet"
    epsilon: float | None = None
    """What it has spent, as it reports."""
    privacy: str | None = None
    """The same in words."""
    charges: int | None = None
    """In its ledger, as it reports."""

    @classmethod
    def of(cls, site: str, notes: list[Note]) -> SiteStatus:
        """The status by a site's lines in the journal."""
        if not notes:
            return cls(site)
        last = notes[-1]
        stated = next((own.statement for own in reversed(notes) if own.statement), None)
        charges = max(own.head.number for own in notes)
        return cls(
            site,
            last.time,
            last.round,
            f"{last.what}: {last.why}" if last.why else last.what,
            None if stated is None or stated.kind == "none" else stated.epsilon,
            None if stated is None else stated.short,
            charges,
        )

    def cells(self) -> list[str]:
        """A line of a table."""
        spent = "–" if self.epsilon is None else shown(self.epsilon)
        seen = "–" if self.seen is None else self.seen[:19].replace("T", " ")
        round_ = "–" if self.round is None else str(self.round)
        charges = "–" if self.charges is None else str(self.charges)
        return [self.site, seen, round_, self.said, spent, charges]


@dataclass(frozen=True)
class Status:
    """Of a deployed run."""

    state: str
    """Either "running or stopped", "finished" or "ended early"."""
    round: int
    rounds: int
    accuracy: float | None
    sites: tuple[SiteStatus, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what sites say is marked as reported."""
        plain = asdict(self)
        sites = [{**own, "reported": True} for own in plain["sites"]]
        return {**plain, "sites": sites}


def status_of(folder: Path) -> Status:
    """The status of the run in a server's folder.

    Raises:
        InvalidInput: There is no deployed run.
    """
    identity = read_identity(folder)
    if identity.sites is None:
        raise InvalidInput("run", f"{str(folder)!r} is not a run of a deployment")
    rows = read_metrics(folder)
    notes = list(Journal(folder).notes())
    summary = read_summary(folder) if has_ended(folder) else None
    measured = [row["accuracy"] for row in rows if row.get("accuracy") is not None]
    state = "running or stopped"
    if summary is not None:
        state = f"ended early ({summary.stopped})" if summary.stopped else "finished"
    return Status(
        state=state,
        round=rows[-1].round if rows else 0,
        rounds=load(folder / CONFIG).training.rounds,
        accuracy=measured[-1] if measured else None,
        sites=tuple(
            SiteStatus.of(site, [own for own in notes if own.site == site])
            for site in identity.sites
        ),
    )
