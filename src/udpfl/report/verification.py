"""Whether a run folder says what its ledger says: every epsilon is computed again, none repeated.

A page vouches for what was checked here and for nothing else. The ledger has to be sound, to hold
the charge that the run ended with and every answer of the run, and its charges up to then have to
cost what summary.json and the header of the model say. What other runs charged later is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import InvalidInput, UdpflError
from udpfl.ledger.accounts import Account
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.places import ledger_of
from udpfl.report.differences import Difference, differences

Row = Mapping[str, Any]
Head = tuple[int, str]
State = Literal["verified", "not verified", "contradicted"]
_MOST_REASONS = 4
_NO_HEAD = (
    "an older version wrote this folder, which does not say with which charge of the shared ledger "
    "the run ended"
)


@dataclass(frozen=True)
class Verification:
    """What came of the check, and why it is not better."""

    state: State
    reasons: tuple[str, ...] = ()
    head: Head | None = None
    """The number and the hash of the ledger's last charge when the run ended, as the folder says.
    """


def head_of(written: Row | None, key: str = "head") -> Head | None:
    """The charge that a summary or the header of a model ends with; None in older ones.

    With the key "decided", the last decision.
    """
    if written is None or written.get(key) is None:
        return None
    try:
        number, chain = written[key]
        return int(number), str(chain)
    except (TypeError, ValueError):
        raise InvalidInput(key, f"must be a number and a hash, got {written[key]!r}") from None


def stamp_of(model: Path) -> Row | None:
    """What the header of a model says, read without torch; None where there is no model."""
    try:
        with model.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > model.stat().st_size:
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length)).get("__metadata__", {})
        stamp = json.loads(header.get("udpfl", "{}"))
        if not isinstance(stamp, dict):
            raise ValueError("its header is not an object")
        return stamp
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidInput("model", f"cannot read {model}: {error}") from None


def check_run(
    path: Path,
    identity: Row,
    people: Sequence[Row],
    metrics: Sequence[Row],
    summary: Row | None,
    nominal: bool,
) -> Verification:
    """Compare what a run folder says with its ledger.

    Guarantee: "verified" means that the ledger's charges up to the end of the run cost every client
    what is stated. It says nothing of a ledger that was written anew from its first charge: that
    has another last charge than the one noted elsewhere, which `udpfl budget verify --against`
    compares.
    """
    wrong: list[str] = []
    doubts: list[str] = []
    if summary is None:
        doubts.append("the run is not finished")
    elif not metrics:
        doubts.append("nobody has trained in this run, so there is no model to speak of")
    head: Head | None = None
    try:
        head, stamp = head_of(summary), stamp_of(path / "model.safetensors")
        folder = _Folder(identity, people, metrics, summary, stamp, nominal, head)
        # A model that claims nothing names no charge, either.
        said = None if stamp is None else stamp.get("privacy")
        claims = stamp is not None and not (isinstance(said, dict) and said.get("kind") == "none")
        if summary is not None and claims and head_of(stamp) != head:
            wrong.append("summary.json and the header of the model end with different charges")
        with Ledger(ledger_of(path, identity), read_only=True) as ledger:
            wrong += folder.missing_charges(ledger)
            if summary is not None and not wrong:
                for found in folder.differences(ledger, summary):
                    (wrong if found.contradicts else doubts).append(found.said)
    except UdpflError as error:
        doubts.append(f"it cannot be recomputed ({error})")
    state: State = "contradicted" if wrong else "not verified" if doubts else "verified"
    return Verification(state, _few(wrong or doubts), head)


def _few(reasons: Sequence[str]) -> tuple[str, ...]:
    distinct = list(dict.fromkeys(reasons))
    more = len(distinct) - _MOST_REASONS
    return (*distinct[:_MOST_REASONS], *((f"and {more} more",) if more > 0 else ()))


@dataclass(frozen=True)
class _Folder:
    """What the files of a run folder say."""

    identity: Row
    people: Sequence[Row]
    metrics: Sequence[Row]
    summary: Row | None
    stamp: Row | None
    nominal: bool
    head: Head | None

    @property
    def run(self) -> str:
        return str(self.identity.get("id"))

    def missing_charges(self, ledger: Ledger) -> Iterator[str]:
        """What is wrong with the ledger itself, or with taking it for that of this run."""
        for problem in ledger.verify(events=False):
            yield f"the ledger is not sound: {problem}"
        if self.head is not None and not ledger.holds(*self.head):
            last, number = ledger.head()[0], self.head[0]
            which = (
                f"an older copy, or another one: it ends with charge {last}"
                if last < number
                else f"another one: its charge {number} has another hash"
            )
            yield f"the ledger does not hold charge {number}, the last of this run; it is {which}"
        decided = head_of(self.summary, "decided")
        if decided is not None and not ledger.holds_decision(*decided):
            yield (
                f"the ledger does not hold decision {decided[0]}, the last before this run ended: "
                "what was decided about budgets was taken back, or it is an older copy"
            )
        charged = sum(ledger.rounds_charged(self.run, own.id) for own in ledger.accounts())
        answers = sum(int(row.get("participants") or 0) for row in self.metrics)
        if charged < answers:
            yield f"the ledger holds {charged} of the {answers} answers of this run"
        if self.head is not None and (last := ledger.last_charge(self.run)) > self.head[0]:
            yield (
                f"the run was charged up to charge {last}, and its summary ends with charge "
                f"{self.head[0]}: it leaves releases out"
            )

    def differences(self, ledger: Ledger, summary: Row) -> Iterator[Difference]:
        """Where what is stated is not what the charges cost."""
        said = {n: PrivacyStatement.from_dict(s) for n, s in summary.get("clients", {}).items()}
        if said.keys() != {person["name"] for person in self.people}:
            yield Difference("summary.json and participants.json name different clients")
            return
        charged = [a for a in ledger.accounts() if ledger.rounds_charged(self.run, a.id)]
        for stranger in (own.client for own in charged if own.client not in said):
            yield Difference(f"{stranger} was charged in this run, and is not among its clients")
        # Without a head, others may have charged a shared ledger between this run's last and end.
        unsure = self.head is None and bool(self.identity.get("ledger"))
        up_to = ledger.last_charge(self.run) if unsure else self.head and self.head[0]
        found: dict[str, PrivacyStatement] = {}
        block = self.identity.get("block") or ""
        accounts = {own.client: own for own in ledger.accounts() if own.block == block}
        for person in self.people:
            name, own = person["name"], said[person["name"]]
            found[name] = own
            if own.kind == "none":  # claims nothing
                continue
            account = accounts.get(name)
            if account is None:
                yield Difference(f"the ledger has no account of {name}")
            elif own.delta not in _deltas(ledger, account, person):
                yield Difference(f"δ = {own.delta:g} of {name} in summary.json is not its budget's")
            else:
                nominal_run = self.run if self.nominal else None
                found[name] = ledger.statement(account.id, own.delta, nominal_run, up_to)
                own_differences = differences(f"summary.json for {name}", own, found[name])
                for each in own_differences:
                    yield each.doubted(_NO_HEAD) if unsure else each
        total = largest((said if unsure else found).values())
        stated = PrivacyStatement.from_dict(summary["privacy"])
        yield from differences("summary.json for the run", stated, total)
        if self.stamp is not None and (self.head is not None or "privacy" in self.stamp):
            if "privacy" not in self.stamp:
                yield Difference("the header of the model has no statement")
                return
            stated = PrivacyStatement.from_dict(self.stamp["privacy"])
            yield from differences("the header of the model", stated, total)
            if self.stamp.get("statement") != summary.get("statement"):
                yield Difference("the header of the model has another statement than summary.json")


def _deltas(ledger: Ledger, account: Account, person: Row) -> set[float | None]:
    """At which deltas the client may be stated: of budgets it has had, else its own."""
    own = person["budget"][1] if person["budget"] else person.get("delta")
    return {budget.delta for budget in ledger.budgets(account.id)} | {own}
