"""What a client's releases were clipped to and noised with, over all rounds and not as planned.

A plan has one noise and one clip. A pace multiplies the noise of every round by a public factor,
fixed beforehand or following results; an adaptive clip moves clip and noise together; and a trusted
server adds the noise in the clients' place: the page shows what came of the plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from udpfl.accounting.events import Release
from udpfl.accounting.serial import event_from_json
from udpfl.accounting.statement import shown
from udpfl.errors import UdpflError
from udpfl.mechanisms.randomiser import randomiser_of
from udpfl.runs.schema import ClientRow, RoundRow

Clipped = Literal["gradients", "persons", "updates", "parameters"]


def what_is_clipped(unit: str, clients: Sequence[ClientRow]) -> Clipped:
    """Gradients of records, or what a whole client sends: its update, or all its parameters."""
    if unit != "client":
        return "gradients" if unit == "record" else "persons"
    return "parameters" if any(client.parameters for client in clients) else "updates"


def noise_of(client: ClientRow, is_claimed: bool = True) -> str:
    """The noise of a client's releases: parameters that change have the first and last value.

    What it costs is said only of a run that claims something.
    """
    if client.release is None:
        return "none"
    if "randomiser" in client.release:
        return _randomised(client.release["randomiser"])
    return _mechanism_of(client, client.release) + _matched(client, is_claimed)


def _matched(client: ClientRow, is_claimed: bool) -> str:
    """The Gaussian that the noise was matched to, and what both cost."""
    if (matched := client.matched) is None:
        return ""
    said = f"; matched to a Gaussian of noise multiplier {matched.reference:.4g}"
    if not is_claimed:
        return said
    if matched.own.kind == "nominal":
        return (
            f"{said} in one coordinate (nominal ε = {shown(matched.own.epsilon)} by Rényi "
            f"divergences, {shown(matched.other.epsilon)} with that Gaussian; of the whole "
            f"gradient {shown(matched.own.vector_epsilon)} and "
            f"{shown(matched.other.vector_epsilon)} are guaranteed)"
        )
    return (
        f"{said} (ε = {shown(matched.own.epsilon)} at whole Rényi orders, "
        f"{shown(matched.other.epsilon)} with that Gaussian)"
    )


def _mechanism_of(client: ClientRow, planned: Mapping[str, Any]) -> str:
    stored = planned["mechanism"]
    name = str(stored.get("name") or stored["class"])  # built in, or one's own
    first, last = _ends(client)
    release = json.dumps(planned, sort_keys=True)
    try:
        ends = [_parameters(release, factor) for factor in (first, last)]
    except UdpflError:  # the code of one's own noise is not here: its factors are all that is known
        fixed = _listed(stored.get("parameters", {}), stored.get("parameters", {}))
        times = "" if first == last == 1 else f" × {_range(first, last)}"
        return f"{name}{fixed}{times}"
    return name + _listed(*ends)


def clip_of(client: ClientRow, metrics: Sequence[RoundRow]) -> str:
    """The norm and the bound; of one that adapts, where it had got to."""
    if client.release is None:
        return "none"
    bound = client.release.get("sensitivity")
    if bound is None:
        own = randomiser_of(client.release["randomiser"])
        bound = {"bound": own.bound, "norm": own.norm}
    # Where the diameter is charged, what was clipped can move by twice the clip, end to end.
    size = bound["bound"] / 2 if client.diameter else bound["bound"]
    said = f"{bound['norm']} {size:g}"
    if not client.count:
        return said
    if not (factors := _clip_factors(metrics)):
        return f"{said} at the start"
    return f"{said} planned, × {factors[-1]:.4g} after round {metrics[-1].round}"


def in_sentences(
    clipped: Clipped,
    server_adds: bool,
    clients: Sequence[ClientRow],
    metrics: Sequence[RoundRow],
) -> tuple[str, ...]:
    """What is to be known of noise and clip beside each client's own."""
    noised = [client for client in clients if client.release is not None]
    if not noised:
        return ()
    lines = [_SERVER if server_adds else _WHERE[clipped]]
    if any(client.release is not None and "randomiser" in client.release for client in noised):
        lines = [_ANSWERS]
    chance = noised[0].participation
    if chance < 1:
        lines.append(
            f"In each round a client takes part with probability {chance:g}, which it decides in "
            f"secret; it pays in every round, whether it takes part or not."
        )
    if any(_ends(client) != (1.0, 1.0) for client in noised):
        lines.append(
            "The noise is paced (privacy.pace): the table shows the noise of the first and of the "
            "last round in which the client is asked."
        )
    if any(client.levels for client in noised):
        lines.append(_following(metrics))
    if any(client.count for client in noised):
        lines.append(_adapting(metrics))
    return tuple(lines)


_WHERE: dict[Clipped, str] = {
    "gradients": "In each local step a client clips the gradient of every record and adds the "
    "noise to their sum.",
    "persons": "In each local step a client adds up the gradients of all rows of every person, "
    "clips each of these sums, and adds the noise to what they come to together.",
    "updates": "In each round a client clips its update as a whole and adds the noise itself.",
    "parameters": "In each round a client clips its parameters as a whole and adds the noise "
    "itself.",
}
_SERVER = (
    "Clients clip their update as a whole and add no noise. The server, which is trusted, adds "
    "the noise of the table once a round, to the sum of all clients' updates."
)


_ANSWERS = (
    "In each round a client clips its update as a whole and sends no noise: it answers questions "
    "about the update, each with two answers, and gives the wrong one now and then."
)


def _randomised(stored: Mapping[str, Any]) -> str:
    own = randomiser_of(stored)
    return f"randomised response ({own.answers} answers, ε {own.epsilon:.4g} each)"


def _following(metrics: Sequence[RoundRow]) -> str:
    known = [row.noise_std for row in metrics if row.noise_std is not None]
    between = (
        f" Over the rounds its standard deviation was {_range(known[0], known[-1])}."
        if known
        else ""
    )
    return (
        'The noise follows results (privacy.pace = "plateau"): the table shows the planned noise, '
        f"with which all rounds would use up the budget.{between} In each round a client adds the "
        "least noise that the server asks for and with which its rounds to come fit its budget. "
        "The server asks by what was released and by public records, so that costs nothing."
    )


def _adapting(metrics: Sequence[RoundRow]) -> str:
    used = [1.0, *_clip_factors(metrics)[:-1]]
    between = (
        f" Over the rounds both were × {_range(min(used), max(used))} of what was planned."
        if metrics
        else ""
    )
    return (
        f"The clip adapts (privacy.clip_quantile), and the noise grows and shrinks with it: the "
        f"table shows the noise for the planned clip.{between} In each round a client also sends "
        f"one count, with separate noise, which is charged as well."
    )


def _clip_factors(metrics: Sequence[RoundRow]) -> list[float]:
    """After every round: the one that the next round uses."""
    return [row.clip_factor for row in metrics if row.clip_factor is not None]


def _ends(client: ClientRow) -> tuple[float, float]:
    """The factors on the noise in the first and in the last round that asks this client."""
    factors, asked = client.factors, client.asked
    if not factors or not asked:
        return 1.0, 1.0
    return factors[asked[0] - 1], factors[asked[-1] - 1]


@lru_cache(maxsize=1024)
def _parameters(stored: str, factor: float) -> dict[str, Any]:
    """Those of the mechanism in such a round, and its standard deviation, which compares."""
    release = event_from_json(stored)
    assert isinstance(release, Release)
    mechanism = release.mechanism.scaled(factor)
    spread = mechanism.noise_std
    known = {} if "std" in mechanism.parameters or not math.isfinite(spread) else {"std": spread}
    return {**mechanism.parameters, **known}


def _listed(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    values = [
        f"{key} {_range(value, last[key])}"
        for key, value in first.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return f" ({', '.join(values)})" if values else ""


def _range(first: float, last: float) -> str:
    ends = [f"{end:,}" if isinstance(end, int) else f"{end:.4g}" for end in (first, last)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
