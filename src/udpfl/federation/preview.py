"""`preview`: what a run would do and cost, before anything is trained, written or charged."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from udpfl.accounting import PrivacyStatement, account
from udpfl.accounting.events import Composed, leaves
from udpfl.config import Config
from udpfl.data.columns import Categorical, Numeric
from udpfl.engine import Entropy, Loss
from udpfl.federation._calibration import why_nothing_is_claimed
from udpfl.federation._learning_rate import learning_rate
from udpfl.federation._opening import check, read_arguments
from udpfl.federation.admission.holding import read_pasts
from udpfl.federation.local_training import Trainer
from udpfl.federation.plan import Past, ReleasePlan
from udpfl.federation.server import Server
from udpfl.federation.setup import Setup


@dataclass(frozen=True)
class ClientPreview:
    """What one client would do, and what it would be charged."""

    plan: ReleasePlan
    """Its noise, clip and releases."""
    records: int
    """That it holds: rows, or persons; for whoever holds them."""
    releases: int
    """In the whole run."""
    statement: PrivacyStatement
    """What it will have spent after the whole run: with a shared ledger, with all that it has spent
    or reserved there before."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        row = self.plan.to_row()
        return {
            "client": self.plan.name,
            "declared_size": self.plan.declared_size,
            "records": self.records,
            "rounds": self.plan.rounds,
            "releases": self.releases,
            "release": row.release,
            "budget": None if row.budget is None else list(row.budget),
            "charge": self.statement.to_dict(),
        }


@dataclass(frozen=True)
class Preview:
    """What a run would do. Nothing was trained for anyone, written or charged."""

    config: Config
    """The settings, with every default."""
    data: Mapping[str, Any]
    """Name, task, sizes, shape and labels of the data."""
    parameters: int
    """Of the model."""
    clients: Sequence[ClientPreview]
    public: Sequence[str]
    """What everybody may know, as the settings say it."""
    assumptions: Sequence[str]
    """What is read off the records and used as if everybody knew it."""
    ledger: Path | None
    """The shared ledger that would be charged; None where the run has its own."""
    seconds: float | None
    """How long all rounds would take on this machine; None where that was not tried."""
    bytes_up: int
    """What one client sends in a round, at least."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "data": dict(self.data),
            "model": {"name": self.config.model.name, "parameters": self.parameters},
            "clients": [client.to_dict() for client in self.clients],
            "public": list(self.public),
            "assumptions": list(self.assumptions),
            "ledger": None if self.ledger is None else str(self.ledger),
            "rounds": self.config.training.rounds,
            "seconds": self.seconds,
            "bytes_up": self.bytes_up,
        }


def preview(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | Mapping[str, Any] | str | None = None,
    data: Any = None,
    test: Any = None,
    loss: Loss | None = None,
    is_timed: bool = True,
    **sections: Any,
) -> Preview:
    """Plan a run as `udpfl.run` would, and stop before it begins.

    A shared ledger is read, to plan within what budgets have left; nothing is written to it.

    Args:
        config: As for `udpfl.run`, like all others.
        model: The model, its name, or a section of settings.
        data: The data, or a section of settings.
        test: The test records.
        loss: Gives one number per sample.
        is_timed: Whether to try one round, and throw it away, to see how long it takes.
        **sections: Settings on top of `config`.

    Returns:
        Data, clients, noise, cost, and what is public.

    Raises:
        InvalidInput, Infeasible, Unsupported, BudgetExceeded: As `udpfl.run` would.
    """
    asked = read_arguments(config, None, model, data, sections)
    setup = Setup.of(asked.config, data=asked.data, test=test, model=asked.model, loss=loss)
    check(setup)
    plans = setup.plans_within_budgets()
    ledger = setup.config.privacy.ledger
    pasts = read_pasts(setup.config.privacy, Path(ledger), setup.holding).pasts if ledger else {}
    return Preview(
        config=setup.config,
        data=_data(setup),
        parameters=setup.model.layout.dimension,
        clients=[
            _client(setup, plan, len(part), pasts.get(plan.name))
            for plan, part in zip(plans, setup.parts, strict=True)
        ],
        public=_public(setup, plans),
        assumptions=setup.assumptions,
        ledger=Path(ledger) if ledger else None,
        seconds=_seconds(setup, plans) if is_timed else None,
        bytes_up=4 * setup.model.layout.dimension,
    )


def _data(setup: Setup) -> dict[str, Any]:
    data = setup.data
    return {
        "name": setup.config.data.name if data.name == "own" else data.name,
        "task": data.task,
        "training_records": len(data.train),
        "unit": "person" if setup.has_persons else "record",
        "test_records": len(data.test),
        "public_records": len(setup.public),
        "input_shape": list(data.input_shape),
        "class_names": None if data.class_names is None else list(data.class_names),
        "classes": data.classes,
    }


def _client(setup: Setup, plan: ReleasePlan, records: int, past: Past | None) -> ClientPreview:
    privacy, event = setup.config.privacy, plan.rest_event()
    unclaimed = why_nothing_is_claimed(setup.config, None)
    if event is None or unclaimed:
        reason = unclaimed or "the client is asked in no round"
        statement = PrivacyStatement.none(reason)
    else:
        delta = plan.budget.delta if plan.budget else plan.delta
        assert delta is not None, "whoever takes part in a private run has a delta"
        statement = account(event, delta, privacy.accountant, privacy.accounting)
        if past is not None and statement.kind == "guarantee":  # by the filter of the ledger
            everything = Composed((*past.history, event))
            pure = account(everything, 0.0).epsilon if delta == 0 else 0.0
            total = past.rule.epsilon(everything, delta) if delta else pure
            statement = replace(
                statement, epsilon=total, vector_epsilon=total, accountant="filter",
                composition="filter",
            )  # fmt: skip
    releases = 0 if event is None else sum(leaves(event).values())
    return ClientPreview(plan, records, releases, statement)


def _public(setup: Setup, plans: Sequence[ReleasePlan]) -> list[str]:
    """What the settings declare, in sentences."""
    config, schema = setup.config, setup.data.schema
    sizes = sorted({plan.declared_size for plan in plans})
    span = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    found = [
        f"sizes of the clients: {span} {'persons' if setup.has_persons else 'records'} "
        f"(data.declared_sizes = {config.data.declared_sizes!r})"
    ]
    if schema is None:
        return found
    for column in (*schema.features, *schema.targets):
        if isinstance(column, Categorical):
            found.append(f"categories of {column.name}: {', '.join(column.categories)}")
        elif isinstance(column, Numeric) and column.bounds is not None:
            found.append(f"bounds of {column.name}: {column.bounds[0]:g} to {column.bounds[1]:g}")
        else:
            found.append(f'bounds of {column.name}: -1 to 1, by the word of the owner ("none")')
    if schema.label:
        found.append(f"labels of {schema.label}: {', '.join(schema.labels)}")
    if isinstance(schema.missing, Mapping):
        constants = ", ".join(f"{name} = {value}" for name, value in schema.missing.items())
        found.append(f"constants for missing cells: {constants}")
    return found


def _seconds(setup: Setup, plans: Sequence[ReleasePlan]) -> float | None:
    """All rounds, from one that is tried and thrown away: its result leaves no function."""
    training = setup.config.training
    chosen = next((own for own in setup.schedule if own), ())
    chosen = tuple(i for i in chosen if plans[i].rounds)
    if not chosen:
        return None
    limits = setup.limits(len(chosen), torch.get_num_threads())
    algorithm = setup.algorithm
    trainer = Trainer("preview", setup.trained_model, *setup.train, algorithm, Entropy(), limits)
    server = Server(algorithm, setup.start, learning_rate=partial(learning_rate, training))
    request = server.request(1)
    records = [torch.from_numpy(setup.parts[i]).to(setup.device) for i in chosen]
    fastest = math.inf
    for _ in range(2):  # the first one warms up
        began = time.perf_counter()
        state = trainer.initial_state(request, len(chosen))
        trainer.train(request, [plans[i] for i in chosen], records, state)
        fastest = min(fastest, time.perf_counter() - began)
    began = time.perf_counter()
    setup.evaluate(setup.start)
    evaluated = time.perf_counter() - began
    return training.rounds * (fastest + evaluated / training.evaluate_every)
