"""Scores of records from the messages that a run recorded."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from udpfl.accounting import Release
from udpfl.algorithms import Algorithm, ClientMessage
from udpfl.attacks.base import Progress
from udpfl.attacks.pool import Pool
from udpfl.attacks.shadows import deal_slots
from udpfl.attacks.target import Target
from udpfl.audit.canaries import clipped
from udpfl.audit.replay import per_sample
from udpfl.audit.worlds import by_chance, likelihood_ratio
from udpfl.data.records import Indices
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation import Server
from udpfl.federation.builders import build_algorithm
from udpfl.federation.plan import ReleasePlan
from udpfl.mechanisms import Radial
from udpfl.mechanisms.arrays import Floats

_CHUNK = 64


def rounds_seen(target: Target) -> list[int]:
    """The recorded rounds whose model is known: the first, and those that follow without a gap.

    Raises:
        InvalidInput: The first round was not recorded.
        Unsupported: The updates are not those of steps of gradient descent, or have no names.
    """
    config = target.config
    if type(target.setup.algorithm).client_step is not Algorithm.client_step:
        raise Unsupported(
            f"{config.training.algorithm} sends more than how far a client moved: server-view "
            "cannot tell which records moved it"
        )
    if config.training.shuffle or target.setup.algorithm.trusts_server or config.training.penalty:
        raise Unsupported(
            "the messages of this run are not those of single clients that follow their own "
            "gradients"
        )
    recorded = {message.round for message in target.messages()}
    rounds: list[int] = []
    while len(rounds) + 1 in recorded:
        rounds.append(len(rounds) + 1)
    if not rounds:
        raise InvalidInput(
            "set record",
            "the run did not record the updates of its first round: train a new one with "
            "record_updates = [1], or leave --set record=recorded out",
        )
    is_plain = not (config.training.stages or config.privacy.clip_quantile)
    return rounds if is_plain else rounds[:1]


def recorded_scores(
    target: Target, pool: Pool, rounds: Sequence[int], progress: Progress
) -> tuple[Floats, bool]:
    """How much more probable the updates of its client are with each record [n].

    A held-out record is tried with a client whose member it resembles. The second value is whether
    these are likelihood ratios: of one step with noise that is added coordinate by coordinate.
    """
    slots = deal_slots(target, pool)
    messages = target.messages()
    algorithm = build_algorithm(target.config)
    start = target.setup.start.cpu()
    server = Server(algorithm, start, learning_rate=algorithm.terms.learning_rate)
    plans = target.plans
    exact = all(plan.release is not None and plan.steps == 1 for plan in plans)
    total = np.zeros(len(pool))
    for number, round_ in enumerate(rounds):
        progress("scoring records", number, len(rounds))
        sent = {own.client: own for own in messages if own.round == round_}
        asked = server.request(round_)
        model = asked.tensors["model"]
        for client, name in enumerate(target.setup.names):
            rows = np.flatnonzero(slots == client)
            if name in sent and len(rows):
                plan = plans[client].at(round_)
                moved = _noisy_sum(plan, sent[name], asked.learning_rate)
                total[rows] += _of_client(target, pool, rows, model, plan, moved)
        server.receive(round_, list(sent.values()))
    return total, exact


def _noisy_sum(plan: ReleasePlan, message: ClientMessage, learning_rate: float) -> Floats:
    """The sum of gradients, with noise, that an update was made of [d]."""
    update = message.tensors["update"].double().cpu().numpy()
    found: Floats = -update * plan.expected_batch / learning_rate
    return found


def _of_client(
    target: Target,
    pool: Pool,
    rows: Indices,
    model: Tensor,
    plan: ReleasePlan,
    moved: Floats,
) -> Floats:
    """Scores of records for one update [rows]."""
    setup = target.setup
    network = copy.deepcopy(setup.network).cpu()
    gradients = per_sample(network, setup.loss)
    named = {name: own.clone() for name, own in setup.model.layout.named(model).items()}
    found = []
    for part in torch.from_numpy(rows).split(_CHUNK):
        own = gradients(named, pool.inputs[part], pool.targets[part]).double().numpy()
        found += [_score(plan, gradient, moved) for gradient in own]
    return np.array(found)


def _score(plan: ReleasePlan, gradient: Floats, moved: Floats) -> float:
    """For one record: a likelihood ratio, or how far the update points along its gradient."""
    release = plan.release
    if not isinstance(release, Release):  # no noise: other records are all that hides it
        return float(gradient @ moved) / max(float(np.linalg.norm(gradient)), 1e-12)
    shift = clipped(gradient, release.sensitivity)
    if plan.steps == 1:
        score = likelihood_ratio(release.mechanism, moved[None], shift)
        return float(by_chance(np.asarray(score), plan.rate)[0])
    if isinstance(release.mechanism, Radial):
        raise Unsupported("noise of whole vectors is scored for one step only")
    expected = plan.steps * plan.rate * shift
    return float((moved - expected / 2) @ expected) / (plan.steps * release.mechanism.variance)
