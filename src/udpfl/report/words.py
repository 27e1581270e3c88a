"""The privacy statement in plain words: what it means, for whom, and what it does not cover.

References: Kairouz, Oh and Viswanath, "The composition theorem for differential privacy" (2015),
the dominating mechanism in the proof of theorem 3.3: whatever an (epsilon, delta)-private release
tells about one record can be simulated by telling the truth outright with probability delta, and
otherwise one randomised answer whose likelihoods differ by the factor e^epsilon. That is the
reading used here; "the loss exceeds epsilon with probability at most delta" would be wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from udpfl.accounting.events import Neighbours, Unit
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.ledger.charges import TRUST
from udpfl.report._notes import notes_of_all
from udpfl.report.read import RunRecord

LABELS = {
    "guarantee": "Guarantee",
    "nominal": "Nominal: not a guarantee",
    "none": "Not private",
}
NOT_KNOWN = "Not known"
UNITS: dict[Unit, str] = {
    "record": "one record",
    "person": "one person",
    "client": "a whole client",
}
WHOSE: dict[Unit, str] = {
    "record": "single records",
    "person": "persons",
    "client": "whole clients",
}
"""Whose privacy the line of a chart is about."""
_NOT_YET = (
    "What the number assumes about the data, such as public sizes or labels, is written down when "
    "the run ends; this page cannot list it yet."
)
_STATED = ": stated when the run ended as an upper bound for every client, and not verified"
RELATION = {"add-remove": "added or removed", "replace-one": "replaced by another"}


@dataclass(frozen=True)
class Belief:
    """How sure someone may become: chances before and after, as text."""

    before: str
    at_most: str
    at_least: str


@dataclass(frozen=True)
class Explanation:
    """The statement taken apart, as plain text."""

    headline: str
    meaning: tuple[str, ...]
    beliefs: tuple[Belief, ...]
    belief: str
    """What the beliefs are about."""
    whom: tuple[str, ...]
    limits: tuple[str, ...]
    notes: tuple[str, ...]


def explain(run: RunRecord) -> Explanation:
    """Everything a reader has to know about the privacy of this run."""
    statement = run.statement
    if run.unread:
        return Explanation(
            headline=f"No number can be stated: {run.unread}.",
            meaning=(
                "What this run has spent is in its ledger; the figures by round may be out of "
                "date. Until the ledger can be read, assume that the model and the messages may "
                f"reveal everything about a single {run.unit}.",
            ),
            beliefs=(),
            belief="",
            whom=("No one, as far as this page can say.",),
            limits=(),
            notes=(),
        )
    if run.contradicted:
        return Explanation(
            headline=f"Contradicted: {statement.notes[0]}.",
            meaning=(
                "This folder and its ledger contradict each other, so this page states no number. "
                "Until the contradiction is explained, assume that the model and the messages may "
                f"reveal everything about a single {run.unit}.",
            ),
            beliefs=(),
            belief="",
            whom=("No one, as far as this page can say.",),
            limits=(),
            notes=(),
        )
    if run.kind == "none":
        reason = "; ".join(statement.notes) or "nothing is claimed"
        return Explanation(
            headline=f"Not private: {reason}.",
            meaning=(
                "The model, the messages and the figures of this run may reveal everything about "
                "a single record. Treat them like the records themselves.",
            ),
            beliefs=(),
            belief="",
            whom=("This run protects no one.",),
            limits=(),
            notes=(),
        )
    nominal = run.kind == "nominal"
    epsilon = statement.vector_epsilon if nominal else statement.epsilon
    return Explanation(
        headline=_headline(run, statement),
        meaning=_meaning(epsilon, statement, nominal),
        beliefs=_beliefs(epsilon),
        belief=_belief(statement),
        whom=_whom(run, statement),
        limits=_limits(run, statement),
        notes=notes_of_all(run) if run.finished else (*notes_of_all(run), _NOT_YET),
    )


def label(run: RunRecord) -> str:
    """The kind of privacy in a few words."""
    if run.unread:
        return NOT_KNOWN
    if run.contradicted:
        return "Contradicted"
    is_special = run.kind != "none" and run.statement.unit != "record"
    return LABELS[run.kind] + (f", {WHOSE[run.statement.unit]}" if is_special else "")


def unit_of(run: RunRecord) -> str:
    """Whose epsilon it is, in few words; nobody's where there is none."""
    return "–" if run.kind == "none" else UNITS[run.unit]


def counted(number: int, noun: str) -> str:
    """So many of them: 1 client, 1,000 clients."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def no_number(run: RunRecord) -> str:
    """What stands in the place of an epsilon where there is none."""
    return "not known" if run.unread else "contradicted" if run.contradicted else "no bound"


def small(delta: float) -> str:
    """A delta for people: a power of ten where it is one."""
    exponent = -math.log10(delta) if 0 < delta < 1 else 0.0
    if exponent >= 3 and math.isclose(exponent, round(exponent), rel_tol=0, abs_tol=1e-12):
        digits = str(round(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"10⁻{digits}"
    return f"{delta:g}"


def trusts_server(statement: PrivacyStatement) -> bool:
    """Whether what is said rests on a server that adds the noise."""
    return TRUST in statement.assumptions


def _headline(run: RunRecord, statement: PrivacyStatement) -> str:
    so_far = "" if run.finished else ", so far (what the ledger held when this page was made)"
    if run.kind == "nominal":
        whole = "update of a client" if statement.unit == "client" else "gradient"
        return (
            f"Nominal ε = {shown(statement.epsilon)}{so_far}: not a guarantee. The true guarantee "
            f"for the whole {whole} is ε = {_shown(statement.vector_epsilon)} at "
            f"δ = {small(statement.delta)}."
        )
    # A number that grows with the next round is no bound on the run.
    verified = run.verification.state == "verified"
    holds = ": an upper bound that holds for every client" if verified else _STATED
    bound = so_far or holds
    if run.finished and run.shared_ledger:
        bound += ", as of the end of this run"
    if trusts_server(statement):
        bound += ", against everyone but the server, which is trusted to add the noise"
    return (
        f"ε = {_shown(statement.epsilon)} at δ = {small(statement.delta)} for one {statement.unit} "
        f"{RELATION[statement.neighbours]}{bound}."
    )


def _meaning(epsilon: float, statement: PrivacyStatement, nominal: bool) -> tuple[str, ...]:
    lines = []
    if nominal:
        whole = "the update of a client" if statement.unit == "client" else "a whole gradient"
        lines.append(
            f"The nominal number comes from accounting {whole} as if it were one coordinate. It "
            f"reproduces the paper, but it protects no one. The following is about the ε that is "
            f"really guaranteed."
        )
    if math.isinf(epsilon):
        hidden = f"a {statement.unit}'s presence"
        return (*lines, f"No finite ε holds for this run: {hidden} may be certain.")
    one, two = _HIDDEN[statement.unit]
    which = (
        f"whether {one} was there"
        if statement.neighbours == "add-remove"
        else f"which of {two} was there"
    )
    lines.append(
        f"Think of someone who knows everything but {which}, and who sees everything that was "
        f"released. Whatever they believed before, {_learned(factor(epsilon), statement.delta)}."
    )
    return tuple(lines)


def _learned(most: str, delta: float) -> str:
    change = f"the odds change by at most a factor of e^ε = {most}"
    if not delta:
        return change
    return (
        f"they learn no more than someone who, with probability δ = {small(delta)} (1 in "
        f"{math.floor(1 / delta + 1e-6):,}), sees the data itself, and otherwise sees one "
        f"randomised answer, by which {change}"
    )


_HIDDEN = {
    "record": ("a record", "two records"),
    "person": ("a person with all rows", "two persons, each with all rows,"),
    "client": ("a client with all its records", "two clients, each with all its records,"),
}


def _belief(statement: PrivacyStatement) -> str:
    delta, unit = statement.delta, statement.unit
    add = statement.neighbours == "add-remove"
    what = f"the {unit} was there" if add else f"it was this {unit}"
    if not delta:
        return f"How sure someone can become that {what}"
    return (
        f"From that one randomised answer, someone can become this sure that {what}; with "
        f"probability δ = {small(delta)} they see the data instead"
    )


def factor(epsilon: float) -> str:
    """e^epsilon for people, never rounded down."""
    if epsilon > math.log(1e6):
        exponent = math.ceil(epsilon / math.log(10))
        return f"10 to the power of {exponent:,}"
    value = math.exp(epsilon)
    unit = 10 ** (math.floor(math.log10(value)) - 2)
    rounded = math.ceil(value / unit - 1e-9) * unit
    return f"{rounded:,.0f}" if unit >= 1 else f"{rounded:.3g}"


def _beliefs(epsilon: float) -> tuple[Belief, ...]:
    if math.isinf(epsilon):
        return ()
    found = []
    for chance in (0.01, 0.1, 0.5):
        odds = math.log(chance / (1 - chance))
        high, low = _chance(odds + epsilon), _chance(odds - epsilon)
        found.append(Belief(f"{100 * chance:g} %", _percent_up(high), _percent_down(low)))
    return tuple(found)


def _chance(log_odds: float) -> float:
    if log_odds > 0:
        return 1 / (1 + math.exp(-log_odds))
    return math.exp(log_odds) / (1 + math.exp(log_odds)) if log_odds > -700 else 0.0


def _percent_up(chance: float) -> str:
    if chance > 0.9999:
        return "nearly 100 %"
    return f"{math.ceil(1e4 * chance - 1e-6) / 100:g} %"


def _percent_down(chance: float) -> str:
    return "nearly 0 %" if chance < 0.0001 else f"{math.floor(1e4 * chance + 1e-6) / 100:g} %"


def _shown(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else shown(epsilon)


def compared(unit: Unit, neighbours: Neighbours, trusted: bool) -> str:
    """Who is hidden, and which two worlds cannot be told apart."""
    if neighbours == "replace-one":
        whole = "all records of one client, replaced by any others"
        return whole if unit == "client" else f"one {unit} of one client, replaced by any other"
    if unit == "person":
        return (
            "one person with all rows at one client: the comparison is between the data with and "
            "without these rows"
        )
    if unit == "record":
        return "one record of one client: the comparison is between the data with and without it"
    if trusted:
        return (
            "one client with all its records: the comparison is between the clients with and "
            "without it"
        )
    return (
        "all records of one client: the comparison is between what the client sends with them and "
        "what it would send without any"
    )


def _whom(run: RunRecord, statement: PrivacyStatement) -> tuple[str, ...]:
    scope = (
        "every run that was charged to the same ledger for the same data "
        + ("before this run ended; later runs add to it" if run.finished else "so far")
        if run.shared_ledger
        else "this run only; its ledger has no other run"
    )
    trusted = trusts_server(statement)
    return (
        f"For {compared(statement.unit, statement.neighbours, trusted)}.",
        "Against the other clients and everyone who sees the models, alone or together, even if "
        "they know all other records, the code and the settings. Not against the server: it "
        "receives the updates without noise and is trusted with them."
        if trusted
        else "Against the server, the other clients and everyone who sees the model or the "
        "messages, alone or together, even if they know all other records, the code and the "
        "settings.",
        f"Over {scope}. Each client has its own ε; the number above is the largest.",
    )


def _limits(run: RunRecord, statement: PrivacyStatement) -> tuple[str, ...]:
    charged = "this ledger" if run.shared_ledger else "the ledger of this run"
    return (
        "Facts that are true of the whole population: the model may learn them whether or not a "
        f"given {statement.unit} is there.",
        "One record of a client that takes part anyway: it may change everything that the client "
        "sends, as if one client left and another joined, which costs twice the ε. And a person "
        "with records at k clients: they have k times the ε, and a δ that grows even faster."
        if statement.unit == "client"
        else "A person with rows at k clients: they have k times the ε, and a δ that grows even "
        "faster."
        if statement.unit == "person"
        else "A person with several records at one client: k records together have k times the ε, "
        "and a δ that grows even faster.",
        "The same records in other data, under another name or elsewhere: they are charged there "
        "again."
        if statement.unit == "client"
        else "The same record in other data, at other clients or elsewhere: it is charged there "
        "again.",
        f"Other runs on the same data that are not in {charged}, and settings that were tuned on "
        "the same data without being charged.",
        "The charts marked “simulation only”, the ledger and the other files of this folder: they "
        "come from private records without noise and stay with the client in a real federation.",
        "The test records and any public records: accuracy and confusion are computed from them "
        "without noise.",
        "Clients that run other software, and what leaks through timing or logs.",
        _rounded(run),
    )


def _rounded(run: RunRecord) -> str:
    added = run.summary and run.summary.rounding
    if not added:
        return "Rounding: computers add noise in floating-point numbers, not in real ones."
    return (
        "Rounding: computers add noise in floating-point numbers, not in real ones. This adds at "
        f"most {_up(added)} to δ."
    )


def _up(value: float) -> str:
    """Two digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1) if value else 1.0
    return f"{math.ceil(value / unit) * unit:.2g}"
