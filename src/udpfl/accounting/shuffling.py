"""Amplification by shuffling: granted where the theorem holds, refused with reasons elsewhere.

Guarantee: `amplify` never returns less than the theorem proves. Theorem (Girgis, Data, Diggavi,
Suresh and Kairouz 2021, "On the Rényi differential privacy of the shuffle model", CCS): for N
clients that each send one message of the *same discrete, epsilon_0-LDP* randomiser, neighbours
replacing one client's whole input, and integer orders a >= 2 with a^4 e^{5 epsilon_0} < N / 9,

    RDP(a) <= log(1 + C(a,2) 4 (e^{epsilon_0} - 1)^2 / N) / (a-1).

The paper this project implements prints the formula without any condition. It is false then: see
`exact_randomised_response` and docs/mathematics.md, section 7.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from udpfl.accounting.events import Composed, Event, PureDP, Repeated, SecretlySelected, Shuffled
from udpfl.mechanisms.arrays import Floats

_LARGEST = 500.0
"""Beyond this divergence e^-gamma is too close to zero to compare with; nothing is amplified."""


def conditions_missing(event: Shuffled) -> list[str]:
    """Why this shuffle amplifies nothing, in plain words; empty where the theorem applies."""
    inner, reasons = event.event, []
    if not isinstance(inner, PureDP):
        return ["the messages are not pure-LDP randomisers (the theorem covers no Gaussian, "
                "Laplace or Staircase messages and no sample-level releases)"]  # fmt: skip
    if event.releases > 1:
        reasons.append(f"a message holds {event.releases:,} releases, not one")
    if inner.unit != "client":
        reasons.append("the unit is one record, not the whole client")
    if inner.neighbours != "replace-one":
        reasons.append("neighbours add or remove a client instead of replacing its data")
    if not inner.discrete:
        reasons.append("the randomiser is not discrete")
    if not event.identical:
        reasons.append("clients do not all run the same randomiser with the same epsilon")
    if not reasons and not _covers(2.0, inner.epsilon, event.clients):
        reasons.append(
            f"too few clients: {event.clients:,} are not more than 144 e^(5 x {inner.epsilon:g}), "
            "which the theorem needs even at order 2"
        )
    return reasons


def unshuffled(event: Event) -> Event:
    """The same event as if no message had been mixed with others.

    Guarantee: it costs no less than the event, because mixing is post-processing.
    """
    match event:
        case Shuffled(inner):
            return inner
        case SecretlySelected() | Repeated():
            return replace(event, event=unshuffled(event.event))
        case Composed(events):
            return Composed(unshuffled(inner) for inner in events)
        case _:
            return event


def _covers(order: float, epsilon: float, clients: int) -> bool:
    return 4 * math.log(order) + 5 * epsilon < math.log(clients / 9)


def amplify(event: Shuffled, orders: Floats, rdp: Floats) -> Floats:
    """The message's own divergence, lowered at the orders where the theorem holds."""
    if conditions_missing(event) or not isinstance(event.event, PureDP):
        return rdp
    epsilon, clients = event.event.epsilon, event.clients
    covered = np.asarray(
        [order == int(order) and _covers(order, epsilon, clients) for order in orders]
    )
    bound = paper_upper(orders, np.full_like(rdp, epsilon), clients)
    return np.where(covered, np.minimum(rdp, bound), rdp)


def paper_upper(orders: Floats, divergence: Floats, clients: int) -> Floats:
    """The paper's upper lemma as printed, without conditions. Not a bound on its own."""
    growth = np.minimum(2 * np.log(np.expm1(np.minimum(divergence, 700.0))), 1400.0)
    pairs = np.log(orders * (orders - 1) / 2)
    return np.asarray(np.logaddexp(0.0, pairs + math.log(4 / clients) + growth) / (orders - 1))


def paper_lower(orders: Floats, divergence: Floats, clients: int) -> Floats:
    """The paper's lower lemma: what some mechanism leaks at least. Never a guarantee."""
    growth = 2 * np.log(np.expm1(divergence)) - divergence
    pairs = np.log(orders * (orders - 1) / 2)
    return np.asarray(np.logaddexp(0.0, pairs - math.log(clients) + growth) / (orders - 1))


def exact_randomised_response(orders: Floats, epsilon: float, clients: int) -> Floats:
    """Exact divergence of N shuffled binary randomised responses when one client's bit flips.

    Shuffling leaves only the number of ones. With everybody else at 0 it is binomial; the client
    in question adds a 1 with probability e^eps/(1+e^eps) or 1/(1+e^eps).
    """
    from scipy.stats import binom  # here: it would nearly double the time to import udpfl

    truth = -math.log1p(math.exp(-epsilon))
    lie = truth - epsilon
    others = binom.logpmf(np.arange(clients), clients - 1, math.exp(lie))
    one, zero = np.append(-np.inf, others), np.append(others, -np.inf)
    log_p = np.logaddexp(truth + one, lie + zero)
    log_q = np.logaddexp(lie + one, truth + zero)
    a = np.asarray(orders, dtype=np.float64)[:, None]
    both = [a * x + (1 - a) * y for x, y in ((log_p, log_q), (log_q, log_p))]
    return np.asarray(np.max([logsumexp(m, axis=1) for m in both], axis=0) / (a[:, 0] - 1))


def nominal(orders: Floats, divergence: Floats, clients: int) -> Floats:
    """The paper's amplification, kept only at orders where a known mechanism does not refute it.

    For the nominal accountant. `divergence` is that of a whole message: of all the releases in it,
    added up. At each order the lemma is used if it is not below the exact divergence of randomised
    response with that much leakage; otherwise nothing is amplified.
    """
    result = np.array(divergence, dtype=np.float64)
    for i, (order, gamma) in enumerate(zip(orders, divergence, strict=True)):
        if not 0 < gamma < _LARGEST:
            continue
        here = np.asarray([order])
        claimed = float(paper_upper(here, np.asarray([gamma]), clients)[0])
        if claimed >= float(exact_randomised_response(here, float(gamma), clients)[0]):
            result[i] = min(gamma, claimed)
    return result
