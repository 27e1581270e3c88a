"""What the server sees of clients: gradients or updates, with whatever stands before them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from udpfl.accounting import Release
from udpfl.algorithms import ClientMessage
from udpfl.algorithms.base import Algorithm
from udpfl.attacks.reconstruction._simulation import Simulation, infer_labels
from udpfl.attacks.target import Target
from udpfl.config.section import Count, Section
from udpfl.engine import Keyed, Lanes, train_round
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.protection import planned_protection
from udpfl.runs.folder import RunFolder

MOST = 100
"""Records of one signal: more are not told apart."""
_SINGLE_STEP = 1024.0
"""The learning rate of a step of which only the gradient is of interest: a power of two, so large
that parameters do not round it."""


class GradientOptions(Section):
    """Which gradients are attacked."""

    view: Literal["fresh", "update"] = Field(
        default="fresh",
        description="'fresh': gradients of held-out records, computed now as a client would; "
        "'update': a message that the run recorded (record_updates).",
    )
    model: Literal["untrained", "trained"] = Field(
        default="untrained", description="Where fresh gradients are computed."
    )
    protection: Literal["run", "none"] = Field(
        default="run",
        description="What stands before fresh gradients: clip and noise of the run, or nothing.",
    )
    signals: Count = Field(default=20, description="Fresh gradients that are attacked.")
    batch: int = Field(default=1, ge=1, le=MOST, description="Records in each fresh gradient.")
    local_steps: Count = Field(
        default=1, description="Local steps before a fresh update is sent; the attack unrolls them."
    )
    labels: Literal["known", "inferred"] = Field(
        default="known", description="Whether the attacker knows the labels or infers them."
    )
    round: Count = Field(default=1, description="Of the recorded message.")
    client: str = Field(default="", description="Who sent it; the first client if left out.")


@dataclass(frozen=True, eq=False)
class Observed:
    """Signals of clients, the records behind them, and what the attacker knows of those."""

    client: Simulation
    """What records would have sent."""
    signals: Tensor
    """The sum of gradients over local steps [T, d]."""
    originals: Tensor
    """The records among which those of each signal are [T, m, ...]; for the figures alone."""
    labels: Tensor
    """Of the records behind each signal, as the attacker has them [T, n]."""
    noise: Tensor | None
    """As many signals of noise alone; None where the run adds none."""
    view: str
    """For people."""
    notes: tuple[str, ...] = ()

    @property
    def batch(self) -> int:
        """Records behind each signal."""
        return self.labels.shape[1]


def observe(target: Target, options: GradientOptions, seed: int) -> Observed:
    """What the server sees, as the options say.

    Raises:
        InvalidInput: An option does not fit the run, or the message was not recorded.
        Unsupported: Clients of this run send something else than gradients of single records.
    """
    target.require_classes("reconstruction from gradients")
    if options.view == "fresh":
        return _fresh(target, options, seed)
    return _recorded(target, options, seed)


def _fresh(target: Target, options: GradientOptions, seed: int) -> Observed:
    """Gradients of held-out records, by the engine, behind the clip and the noise of the run."""
    setup, count = target.setup, options.signals * options.batch
    if count > len(target.nonmembers):
        raise Unsupported(
            f"{options.signals} gradients of {options.batch} need {count} held-out records, and "
            f"there are {len(target.nonmembers)}: set fewer signals"
        )
    rng = np.random.default_rng([*b"reconstruction", seed])
    rows = rng.permutation(target.nonmembers)[:count]
    inputs, targets = (own.to(setup.device) for own in target.test_records(rows))
    start = (setup.start if options.model == "untrained" else target.parameters).to(setup.device)
    rate = _SINGLE_STEP if options.local_steps == 1 else setup.config.training.learning_rate
    client = Simulation(setup.model, start, options.local_steps, rate)
    plan = protecting(target) if options.protection == "run" else None
    shape = options.signals, options.batch
    signals = released(target, client, inputs, targets, shape, plan, seed)
    noise = None
    if plan is not None:
        noise = released(target, client, inputs, targets, shape, plan, seed + 1, empty=True)
    labels = targets.view(shape)
    if options.labels == "inferred":
        labels = _inferred(client, signals, inputs.view(*shape, *inputs.shape[1:]), seed)
    what = "a gradient" if options.local_steps == 1 else f"{options.local_steps} local steps"
    of = "one record" if options.batch == 1 else f"{options.batch} records"
    behind = "with the clip and noise of the run" if plan else "without privacy"
    view = f"{what} of {of} at the {options.model} model, {behind}"
    return Observed(
        client, signals, inputs.view(*shape, *inputs.shape[1:]), labels, noise, view,
        ("The pictures are held-out records: no client's record is shown.",),
    )  # fmt: skip


def protecting(target: Target) -> ReleasePlan | None:
    """The plan whose noise is the smallest beside its clip; None where the run has none."""
    private = [plan for plan in target.plans if plan.release is not None]
    for plan in private:
        if not isinstance(plan.release, Release) or plan.release.unit != "record":
            raise Unsupported(
                "this run hides whole clients, so a gradient of a few records is never released: "
                "record messages (record_updates) and take view = 'update', or protection = 'none'"
            )
    return min(private, key=_relative_noise, default=None)


def _relative_noise(plan: ReleasePlan) -> float:
    assert isinstance(plan.release, Release)
    return plan.release.mechanism.noise_std / plan.release.sensitivity.bound


def released(
    target: Target,
    client: Simulation,
    inputs: Tensor,
    targets: Tensor,
    shape: tuple[int, int],
    plan: ReleasePlan | None,
    seed: int,
    *,
    empty: bool = False,
) -> Tensor:
    """What the engine lets out of such batches, as sums of gradients [T, d].

    Args:
        target: The run.
        client: Where its clients start, and their steps.
        inputs: All records, one batch after the other.
        targets: Of all records.
        shape: Batches, and records in each.
        plan: The clip and the noise; neither if None.
        seed: Of the noise, which is the attacker's own experiment and nobody's release.
        empty: Whether all batches are empty, so that nothing but noise is let out.
    """
    setup, (lanes, size) = target.setup, shape
    rows = torch.arange(lanes * size, device=inputs.device).view(lanes, size)
    release = None if plan is None else plan.release
    plans = [replace(target.plans[0], release=release)] * lanes
    clipper, noiser = planned_protection(plans)
    moved = train_round(
        setup.trained_model,
        inputs,
        targets,
        client.start.repeat(lanes, 1),
        Lanes(
            runs=("attack",) * lanes,
            clients=tuple(f"attacked-{lane}" for lane in range(lanes)),
            records=tuple(own[:0] if empty else own for own in rows),
            rates=(1.0,) * lanes,
            denominators=torch.full((lanes,), float(size), device=inputs.device),
            learning_rates=torch.full((lanes,), client.learning_rate, device=inputs.device),
            steps=(client.steps,) * lanes,
            clipper=clipper,
            noiser=noiser,
        ),
        1,
        Keyed(seed),
        setup.limits(lanes, 1),
    ).parameters
    return (client.start - moved) / client.learning_rate


def _inferred(client: Simulation, signals: Tensor, inputs: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(inputs.shape[1:], generator=generator).to(signals.device)
    return torch.stack(
        [infer_labels(client.model, client.start, own / client.steps, drawn) for own in signals]
    )


def _recorded(target: Target, options: GradientOptions, seed: int) -> Observed:
    """A message of the run, and all records of the client that sent it."""
    setup = target.setup
    number = _sender(target, options.client)
    plan, part = target.plans[number].at(options.round), setup.parts[number]
    message = _message(target, options.round, plan.name)
    rate = setup.algorithm.terms.learning_rate(options.round)
    signal = _signal(target, message, rate).to(setup.device)
    whole = plan.rate == 1 and plan.batches == 1
    _require_plain_steps(plan)
    distinct = 1 if whole else plan.steps
    size = len(part) if whole else max(1, round(plan.expected_batch))
    if distinct * size > MOST:
        raise Unsupported(
            f"{plan.name} computes its message from about {distinct * size} records, and no more "
            f"than {MOST} are told apart: take view = 'fresh', or a run with smaller batches"
        )
    client = Simulation(
        setup.model, _start(target, options.round).to(setup.device), plan.steps, rate, distinct
    )
    inputs, targets = (own.to(setup.device) for own in target.train_records(part))
    shape = (1, distinct * size, *inputs.shape[1:])
    notes = ["The pictures show records of a client: keep this page as you keep the data."]
    if whole and options.labels == "known":
        labels = targets[None]
    else:
        labels = _inferred(client, signal[None], torch.empty(shape), seed)
        if distinct > 1:  # every step has some of each
            generator = torch.Generator().manual_seed(seed)
            labels = labels[:, torch.randperm(labels.shape[1], generator=generator)]
    if not whole:
        notes.append(
            "Which records took part is stored nowhere. Each reconstruction is held against the "
            "closest records of the client, which flatters every row, that of noise alone too."
        )
    noise = _noise_like(target, client, plan, (distinct * size, seed))
    view = f"what {plan.name} sent in round {options.round}"
    return Observed(client, signal[None], inputs[None], labels, noise, view, tuple(notes))


def _require_plain_steps(plan: ReleasePlan) -> None:
    """Refuse a client whose steps are more than those on the gradients of their batches."""
    more = {
        "split samples into batches": plan.epochs * plan.batches > 1,
        "are pulled towards others (training.penalty)": plan.penalty > 0,
        "have a clip that adapts": plan.count is not None,
    }
    for what, is_so in more.items():
        if is_so:
            raise Unsupported(
                f"clients of this run {what}, which this attack cannot unroll: take view = 'fresh'"
            )


def _noise_like(
    target: Target, client: Simulation, plan: ReleasePlan, size_and_seed: tuple[int, int]
) -> Tensor | None:
    """A message of the same client about no record at all."""
    if plan.release is None:
        return None
    size, seed = size_and_seed
    protecting(target)  # refuses what is not noise on the gradients of records
    x, y = target.train_records(target.members[:1])
    inputs, targets = (own.to(target.setup.device) for own in (x, y))
    return released(target, client, inputs, targets, (1, size), plan, seed + 1, empty=True)


def _sender(target: Target, client: str) -> int:
    names = [plan.name for plan in target.plans]
    if client and client not in names:
        raise InvalidInput("set client", f"there is no {client!r}: {', '.join(names[:10])}")
    return names.index(client) if client else 0


def _message(target: Target, round_: int, client: str) -> ClientMessage:
    messages = target.messages()
    for message in messages:
        if (message.round, message.client) == (round_, client):
            return message
    known = sorted({f"{own.client or '(no name)'} in round {own.round}" for own in messages})
    raise InvalidInput(
        "set view",
        f"no message of {client} in round {round_} was recorded (record_updates); there is: "
        f"{', '.join(known[:10]) or 'none'}",
    )


def _signal(target: Target, message: ClientMessage, rate: float) -> Tensor:
    """The sum of gradients [d] that a message holds."""
    algorithm = target.setup.algorithm
    if type(algorithm).client_step is Algorithm.client_step and "update" in message.tensors:
        return -message.tensors["update"].float() / rate
    if algorithm.name == "fedsgd":
        return message.tensors["gradient"].float()
    raise Unsupported(
        f"{algorithm.name} sends more than how far a client moved by plain local steps, which is "
        "what this attack inverts; take view = 'fresh'"
    )


def _start(target: Target, round_: int) -> Tensor:
    """The model that clients received in this round."""
    if round_ == 1:
        return target.setup.start
    kept = RunFolder.open(target.folder, "run").read_checkpoint()
    if kept is None or kept.round != round_ - 1:
        raise InvalidInput(
            "set round",
            f"the model that round {round_} began with is not in the folder; that of round 1 is "
            "always known",
        )
    return kept.tensors["model"]
