"""Attacks on a run, as a section of its report."""

from __future__ import annotations

from udpfl.report._sections import prose, scrolling, text
from udpfl.report.read import RunRecord
from udpfl.runs.attacks import AttackRecord
from udpfl.runs.audits import model_digest


def attacks(run: RunRecord) -> str:
    """The latest of each, and all that went past a cap."""
    attacks = run.attacks
    if not attacks:
        return ""
    latest = {own.attack: own for own in attacks}
    shown = [own for own in attacks if own.exceeded or latest[own.attack] is own]
    rows = "".join(
        f'<tr><th scope="row"><a href="attacks/{text(own.page.name)}">{text(own.attack)}</a></th>'
        f"<td>{text(own.result['kind'])}</td><td>{prose(own.verdict)}"
        f"{_other(run, own)}</td><td>{text(own.made[:10])}</td></tr>"
        for own in shown
    )
    table = (
        '<table><thead><tr><th scope="col">attack</th><th scope="col">kind</th>'
        '<th scope="col">what came of it</th><th scope="col">day</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    return (
        '<section aria-labelledby="attacks"><h2 id="attacks">Attacks</h2><p>What attackers found. '
        f"A weak result proves nothing about a better attacker; {_LIMITS[run.statement.kind]}.</p>"
        f"{scrolling(table, 'attacks on this run')}</section>"
    )


_LIMITS = {
    "guarantee": "what ε states holds against all of them",
    "nominal": "the nominal ε of this run is no guarantee against any",
    "none": "this run states nothing that would hold against one",
}


def _other(run: RunRecord, own: AttackRecord) -> str:
    attacked = own.result["attacked"]
    if attacked["run"] == run.identity.id and attacked["model"] == model_digest(run.path):
        return ""
    return " This attack is on another run or model than the one in this folder."
