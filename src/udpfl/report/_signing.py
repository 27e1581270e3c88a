"""The parts of the page that are for signing: the summary, the words for paper, the signatures."""

from __future__ import annotations

from collections.abc import Iterable

from udpfl.report._configuration import changed_settings
from udpfl.report._executive import audits, executive_line, ledger_digest, refuted
from udpfl.report._sections import privacy_badge, prose, text
from udpfl.report.read import RunRecord
from udpfl.report.words import counted

_SIGNERS = ("Responsible for the training", "Responsible for data protection")
_LINES = ("Name", "Role", "Date", "Signature")
_LEFT_OUT = (
    "On paper the other charts, the class-by-class results, the numbers behind the charts and "
    "settings at their defaults are left out; report.html has all of them."
)


def summary(run: RunRecord) -> str:
    """The sentence to repeat, what was verified, the digest and the audits."""
    rows = [("Verification", [_verified(run)])] if run.kind != "none" or run.contradicted else []
    if (digest := ledger_digest(run)) != "–":
        rows.append(("Ledger digest", [f"{digest}. Note it elsewhere: it tells whether this is "
                                       "still the ledger of this run."]))  # fmt: skip
    if said := audits(run):
        rows.append(("Audit", said))
    if used := _used_up(run):
        rows.append(("Budgets", [used]))
    body = "".join(
        f"<div><dt>{name}</dt>{_paragraphs(lines, name == 'Audit' and refuted(run))}</div>"
        for name, lines in rows
    )
    return (
        f'<section class="privacy banner {run.tone}" aria-label="Summary to sign">'
        f'<p class="headline">{privacy_badge(run)} {prose(executive_line(run))}</p>'
        f'<dl class="checked">{body}</dl>'
        '<p class="screen"><a href="#privacy">What this means, for whom, and what it does not '
        "cover</a></p></section>"
    )


def _paragraphs(lines: Iterable[str], warns: bool) -> str:
    shade = ' class="refuted"' if warns else ""
    return "".join(f"<dd{shade}>{prose(line)}</dd>" for line in lines)


def _verified(run: RunRecord) -> str:
    """What the number was compared with, or why it could not be."""
    if run.verification.state != "verified":
        return f"{run.verification.state.capitalize()}: {'; '.join(run.verification.reasons)}."
    return (
        "Verified: every client’s ε was recomputed from the ledger when this page was made. The "
        "chain of the ledger is sound, it holds all charges of this run, and the settings, noise, "
        "figures and model are those that the run sealed in it. The quality of the model was "
        "measured by the run and not checked here."
    )


def _used_up(run: RunRecord) -> str:
    budgeted = [own for own in run.clients if own.budget is not None and own.statement is not None]
    full = sum(own.has_used_up for own in budgeted)
    if run.kind != "guarantee" or not full:
        return ""
    have = "has used up its" if full == 1 else "have used up their"
    return (
        f"{full:,} of {counted(len(budgeted), 'client')} {have} {run.budget_name} (99 % of it or "
        "more): another run on the same records needs a larger one."
    )


def on_paper(run: RunRecord) -> str:
    """What stands in for the configuration on paper, and what is left out there."""
    changed = changed_settings(run.config) or [("settings", "all at their defaults")]
    said = "; ".join(f"{text(key)} = {text(value)}" for key, value in changed)
    return (
        '<section class="paper"><h2>Settings that differ from the defaults</h2>'
        f"<p>{said}.</p><p>{_LEFT_OUT}</p></section>"
    )


def signature(run: RunRecord) -> str:
    """Lines to sign on, where there is something to sign."""
    if run.contradicted or run.unread:
        body = "<p>There is nothing to sign: the folder and its ledger do not agree.</p>"
    elif not run.finished:
        body = "<p>There is nothing to sign yet: the run has not ended.</p>"
    else:
        body = _agreed(run) + "".join(_signer(who) for who in _SIGNERS)
        body = f'<div class="signers">{body}</div>'
    return (
        '<section class="sign" aria-labelledby="signatures"><h2 id="signatures">Signatures</h2>'
        f"{body}</section>"
    )


def _agreed(run: RunRecord) -> str:
    """What is signed, with what ties this page to the run."""
    doubt = ""
    if run.kind == "none":
        doubt = " Whoever signs knows that nothing is promised about the privacy of this run."
    elif run.verification.state != "verified":
        doubt = " The number was <strong>not verified</strong>."
    if refuted(run):
        doubt += " <strong>An audit refuted the claim.</strong>"
    return (
        f'<p class="agreed">We have read this page about the run {text(run.name)} (id '
        f"<code>{text(run.identity.id)}</code>, ledger digest <code>{text(ledger_digest(run))}"
        f"</code>), what it promises and what it does not cover.{doubt}</p>"
    )


def _signer(who: str) -> str:
    lines = "".join(f"<div><dt>{line}</dt><dd></dd></div>" for line in _LINES)
    return f"<div><h3>{who}</h3><dl>{lines}</dl></div>"
