"""Whether a run folder and a ledger belong together: the run's id, its last charge, sealed files.

`udpfl report` and `udpfl budget verify --against` ask the same questions here.
"""

from __future__ import annotations

from collections.abc import Iterator

from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import Digests, Ending, Sealed, digests
from udpfl.report._differences import Difference
from udpfl.runs.files import RunFiles
from udpfl.runs.names import BEGUN_WITH, ENDED_WITH
from udpfl.runs.schema import Summary

_NOT_SEALED = (
    "an earlier version of udpfl wrote this folder and sealed none of its files: it is not known "
    "whether they were edited since"
)


def mismatches(ledger: Ledger, files: RunFiles) -> Iterator[Difference]:
    """What speaks against taking this ledger for that of the run, and these files for its own."""
    sealed = ledger.sealed(files.run)
    yield from _unknown(ledger, files, sealed)
    if sealed.begun_with is not None:
        yield from _edited(files, BEGUN_WITH, sealed.begun_with, "began")
    if files.summary is not None:
        yield from _ended(files, files.summary, sealed)
        if files.metrics and not files.model.is_file():
            yield Difference(f"{files.model.name} is missing", contradicts=False)
    yield from _not_held(ledger, files)
    yield from _not_charged(ledger, files)


def _unknown(ledger: Ledger, files: RunFiles, sealed: Sealed) -> Iterator[Difference]:
    is_known, is_over = ledger.knows(files.run), files.summary is not None
    if not is_known and (is_over or files.answers):  # else it may not have come to begin
        yield Difference(f"the ledger does not know the run {files.run}, which run.json names")
    if is_known and sealed.begun_with is None:
        yield Difference(_NOT_SEALED, contradicts=False)


def _edited(
    files: RunFiles, names: tuple[str, ...], sealed: Digests, verb: str
) -> Iterator[Difference]:
    found = digests(files.path, names)
    for name in names:
        if name not in found and name in sealed:  # nothing else is said in its place
            yield Difference(f"{name} is missing", contradicts=False)
        elif name in found and name not in sealed:
            yield Difference(f"the run {verb} without {name}")
        elif found.get(name) != sealed.get(name):
            yield Difference(f"{name} is not the file that the run {verb} with")


def _ended(files: RunFiles, summary: Summary, sealed: Sealed) -> Iterator[Difference]:
    if sealed.ending is not None:
        yield from _edited(files, ENDED_WITH, sealed.ending.files, "ended")
        yield from _ended_otherwise(summary, sealed.ending)
    elif sealed.begun_with is not None:
        yield Difference("summary.json says that the run ended, but the ledger does not")


def _ended_otherwise(summary: Summary, ending: Ending) -> Iterator[Difference]:
    for word, said, own in (
        ("charge", summary.head, ending.head.number),
        ("decision", summary.decided, ending.decision),
    ):
        if said is None:
            yield Difference(f"summary.json does not name the last {word} of the run")
        elif said.number != own:
            yield Difference(f"the run ended with {word} {own}, but summary.json names {said[0]}")
    for key, own in ending.outcome.items():
        if key not in summary.outcome or summary.outcome[key] != own:
            yield Difference(f"“{key}” in summary.json is not the one with which the run ended")


def _not_held(ledger: Ledger, files: RunFiles) -> Iterator[Difference]:
    """Charges and decisions that the folder names and the ledger does not have."""
    summary = files.summary
    head, decided = (summary.head, summary.decided) if summary else (None, None)
    if head is not None and not ledger.holds(*head):
        last = ledger.head()[0]
        which = (
            f"an older copy, or another one: it ends with charge {last}"
            if last < head.number
            else f"another one: its charge {head.number} has another hash"
        )
        yield Difference(
            f"the ledger does not hold charge {head.number}, the last of this run; this is {which}"
        )
    if decided is not None and not ledger.holds(*decided, "decisions"):
        yield Difference(
            f"the ledger does not hold decision {decided.number}, the last before this run ended: "
            "decisions about budgets were removed, or it is an older copy"
        )
    stamp = files.stamp
    # A model that claims nothing names no charge, either.
    if summary and stamp and stamp.is_claim and stamp.head != head:
        yield Difference("summary.json and the header of the model name different last charges")


def _not_charged(ledger: Ledger, files: RunFiles) -> Iterator[Difference]:
    """Answers without a charge, and charges that the summary leaves out."""
    charged = sum(ledger.rounds_charged(files.run, own.id) for own in ledger.accounts())
    if charged < files.answers:
        yield Difference(f"the ledger holds {charged} of the {files.answers} answers of this run")
    if files.summary is None or (head := files.summary.head) is None:
        return
    if head.number == 0 and files.answers:
        yield Difference(
            f"summary.json says that nothing was charged, but metrics.jsonl has {files.answers} "
            "answers of clients"
        )
    if (last := ledger.last_charge(files.run)) > head.number:
        yield Difference(
            f"the last charge of the run is {last}, but its summary ends with charge "
            f"{head.number}: it leaves releases out"
        )
