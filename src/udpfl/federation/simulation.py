"""`udpfl.run`: from a configuration to a trained model and a ledger, top to bottom."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl import models
from udpfl._version import __version__
from udpfl.accounting import PrivacyStatement
from udpfl.algorithms import BUILT_IN as ALGORITHMS
from udpfl.algorithms import Algorithm, ServerStep
from udpfl.config import Config, PrivacyConfig, dump, load
from udpfl.data import BUILT_IN as DATA
from udpfl.data import DataSet, as_dataset
from udpfl.data.records import Task
from udpfl.engine import Entropy, Keyed, LaneModel, Loss
from udpfl.engine.limits import choose_limits
from udpfl.errors import InvalidInput
from udpfl.federation.clients import Clients, Protection, Site
from udpfl.federation.folder import RunFolder
from udpfl.federation.observers import Observer
from udpfl.federation.participants import Participant, participants, selection
from udpfl.federation.rounds import Federation
from udpfl.federation.shares import declared_sizes, divided
from udpfl.harmonizer.ledger import Ledger
from udpfl.plugins import resolve

log = logging.getLogger(__name__)

_OWN = "own"
"""Stands for a model or data set that was handed over in Python."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    config: Config
    model: nn.Module
    """The user's own architecture with the trained weights."""
    privacy: PrivacyStatement
    """The largest spending of any client."""
    clients: Mapping[str, PrivacyStatement]
    metrics: Sequence[Mapping[str, Any]]
    ledger_path: Path
    seconds: float
    stopped: str | None = None

    @cached_property
    def ledger(self) -> Ledger:
        """Every client's account, to look at."""
        return Ledger(self.ledger_path, read_only=True)

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the final model; None for regression."""
        return self._last("accuracy")

    @property
    def loss(self) -> float | None:
        """Test loss of the final model."""
        return self._last("loss")

    def _last(self, name: str) -> float | None:
        return next((row[name] for row in reversed(self.metrics) if row[name] is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """What `udpfl run --json` prints."""
        last = self.metrics[-1] if self.metrics else {}
        errors = {name: last[name] for name in ("mae", "mse") if name in last}
        return {
            "accuracy": self.accuracy,
            "loss": self.loss,
            **errors,
            "privacy": self.privacy.to_dict(),
            "seconds": round(self.seconds, 3),
            "run": str(self.folder),
            "stopped": self.stopped,
        }


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    test: Any = None,
    loss: Loss | None = None,
    resume: str | Path | None = None,
    observers: Sequence[Observer] = (),
    protection: Protection | None = None,
    **sections: Any,
) -> Run:
    """Train one model over many clients, each within its own privacy budget.

    `config` is a file, a mapping or a `Config`; `sections` go on top of it, such as
    `privacy={"epsilon": 2}` or `seed=1`. `model` is any `nn.Module`, `data` anything that
    `udpfl.data.as_dataset` takes. `resume` continues a run folder. Observers see every released
    message and every round's model. `protection` replaces clipping and noise, for audits.
    """
    began = time.perf_counter()
    folder, settings = _opened(config, resume, sections, model, data)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = _device(settings.device)

    dataset = _data(settings, data, test)
    if dataset.owners is not None and len(dataset.owners) != settings.data.clients:
        settings = load(settings, {"data": {"clients": len(dataset.owners)}})
    parts, public = divided(settings, dataset)

    network = _model(settings, model, dataset)
    lane_model = LaneModel(network, loss or _loss(dataset.task)).to(device)
    start = lane_model.initial().to(device)
    inputs = torch.from_numpy(dataset.train.inputs).to(device)
    targets = torch.from_numpy(dataset.train.targets).to(device)
    test_inputs = torch.from_numpy(dataset.test.inputs).to(device)
    test_targets = torch.from_numpy(dataset.test.targets).to(device)
    per_sample = lane_model.check(start, test_inputs[:3], test_targets[:3])

    schedule = selection(settings)
    if folder is None:
        sizes = declared_sizes(settings, dataset, parts)
        people = participants(settings, sizes, schedule, lane_model.layout.dimension)
        folder = _begun(settings, people)
        folder.write_records(parts, public)
    people = [Participant.from_dict(row) for row in folder.read_json("participants.json")]
    identity = folder.read_json("run.json")

    ledger_path = _ledger_path(settings, folder)
    with Ledger(ledger_path) as ledger:
        sites = _sites(settings, ledger, identity["id"], dataset, parts, people, device)
        limits = choose_limits(
            settings.training.lanes,
            lanes=max(len(chosen) for chosen in schedule),
            dimension=lane_model.layout.dimension,
            bytes_per_sample=per_sample,
            memory=settings.training.memory << 20,
            chunk=settings.training.chunk,
            device=device,
        )
        seeded = isinstance(settings.privacy, PrivacyConfig) and (
            settings.privacy.randomness == "seeded"
        )
        algorithm = _algorithm(settings)
        clients = Clients(
            run=identity["id"],
            key=f"seed-{settings.seed}",
            model=lane_model,
            inputs=inputs,
            targets=targets,
            algorithm=algorithm,
            ledger=ledger,
            stream=Keyed(settings.seed) if seeded else Entropy(),
            limits=limits,
            protection=protection,
        )
        federation = Federation(
            config=settings,
            folder=folder,
            run=identity["id"],
            model=lane_model,
            algorithm=algorithm,
            clients=clients,
            sites=sites,
            schedule=schedule,
            ledger=ledger,
            test=(test_inputs, test_targets),
            task=dataset.task,
            observers=observers,
        )
        final = federation.train(start)
        statements = federation.statements()
    trained = _filled(network, lane_model, final)
    folder.write_model(dict(trained.state_dict()))
    result = Run(
        folder=folder.path,
        config=settings,
        model=trained,
        privacy=_worst(statements, settings),
        clients=statements,
        metrics=federation.metrics,
        ledger_path=ledger_path,
        seconds=time.perf_counter() - began,
        stopped=federation.stopped,
    )
    folder.write_json(
        "summary.json",
        {**result.to_dict(), "clients": {n: s.to_dict() for n, s in statements.items()}},
    )
    return result


def _opened(
    config: Config | Mapping[str, Any] | str | Path | None,
    resume: str | Path | None,
    sections: Mapping[str, Any],
    model: nn.Module | None,
    data: Any,
) -> tuple[RunFolder | None, Config]:
    """The settings, and the folder if there is one already."""
    if resume is not None:
        if config is not None or sections:
            raise InvalidInput("resume", "continues a run as it was begun: no settings beside it")
        folder = RunFolder.open(Path(resume))
        return folder, load(folder.config)
    own: dict[str, Any] = dict(sections)
    for name, given in (("model", model), ("data", data)):
        if given is not None:
            own[name] = {**_section(own.get(name)), "name": _OWN}
    return None, load(config, own)


def _begun(settings: Config, people: Sequence[Participant]) -> RunFolder:
    now = datetime.now().astimezone()
    name = f"{settings.data.name}-{settings.training.algorithm}".replace(":", "-")
    default = Path("runs") / f"{name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = RunFolder.create(Path(settings.out) if settings.out else default)
    folder.write_text("config.toml", dump(settings))
    folder.write_json("participants.json", [person.to_dict() for person in people])
    privacy = settings.privacy
    if not isinstance(privacy, PrivacyConfig):
        stamp = "not private: privacy is turned off"
    elif privacy.randomness == "seeded":
        stamp = "not private: noise and sampling are seeded"
    elif privacy.accounting == "scalar":
        stamp = "nominal: scalar accounting, not a privacy guarantee"
    else:
        stamp = "private: vector accounting, a guarantee"
    identity = {
        "id": secrets.token_hex(8),
        "udpfl": __version__,
        "torch": torch.__version__,
        "started": now.isoformat(timespec="seconds"),
        "privacy": stamp,
    }
    folder.write_json("run.json", identity)  # last: with it the folder can be resumed
    return folder


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidInput("device", f"{name!r}: this machine has no such CUDA device")
    return device


def _data(settings: Config, data: Any, test: Any) -> DataSet:
    name, options = settings.data.name, settings.data.options
    if data is not None:
        fraction = settings.data.test
        return as_dataset(
            data, fraction if test is None else test, task=settings.data.task, seed=settings.seed,
            options=options,
        )  # fmt: skip
    if name == _OWN:
        raise InvalidInput("data.name", "this run has data of its own: hand it to udpfl.run(data=)")
    directory = settings.data.dir or os.environ.get("UDPFL_DATA_DIR")
    loader = resolve("data", name, DATA)
    loaded = loader(
        seed=settings.seed,
        directory=Path(directory) if directory else None,
        test=settings.data.test,
        options=options if settings.data.task is None else {**options, "task": settings.data.task},
    )
    if isinstance(loaded, DataSet):
        return loaded
    return as_dataset(loaded, settings.data.test, task=settings.data.task, seed=settings.seed)


def _model(settings: Config, model: nn.Module | None, data: DataSet) -> nn.Module:
    if model is not None:
        return model
    name = settings.model.name
    if name == _OWN:
        raise InvalidInput(
            "model.name", "this run has a model of its own: hand it to udpfl.run(model=)"
        )
    factory = resolve("models", name, models.BUILT_IN)
    if isinstance(factory, nn.Module):
        return factory
    return models.build(
        factory, data.input_shape, data.outputs, seed=settings.seed, **settings.model.options
    )


def _algorithm(settings: Config) -> Algorithm:
    training = settings.training
    kind = resolve("algorithms", training.algorithm, ALGORITHMS)
    server = ServerStep(training.server_learning_rate, training.server_momentum)
    try:
        made = kind(server, **training.options)
    except TypeError as error:
        raise InvalidInput("training.options", f"{training.algorithm}: {error}") from None
    if not isinstance(made, Algorithm):
        raise InvalidInput("training.algorithm", f"{training.algorithm!r} is not an Algorithm")
    return made


def _loss(task: Task) -> Loss:
    if task == "classification":
        return lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none")
    return lambda outputs, targets: (outputs - targets).flatten(1).square().mean(1)


def _ledger_path(settings: Config, folder: RunFolder) -> Path:
    shared = isinstance(settings.privacy, PrivacyConfig) and settings.privacy.ledger
    return Path(shared) if shared else folder.ledger


def _sites(
    settings: Config,
    ledger: Ledger,
    run_id: str,
    data: DataSet,
    parts: Sequence[Any],
    people: Sequence[Participant],
    device: torch.device,
) -> list[Site]:
    """Open every client's account and see whether the run fits its budget."""
    privacy = settings.privacy
    private = isinstance(privacy, PrivacyConfig)
    ledger.begin_run(
        run_id,
        randomness=privacy.randomness if isinstance(privacy, PrivacyConfig) else "entropy",
        accounting=privacy.accounting if isinstance(privacy, PrivacyConfig) else "vector",
        description={"data": settings.data.name, "algorithm": settings.training.algorithm},
    )
    guaranteed = isinstance(privacy, PrivacyConfig) and privacy.accounting == "vector"
    shared = isinstance(privacy, PrivacyConfig) and privacy.ledger is not None
    sites = []
    for person, part in zip(people, parts, strict=True):
        fingerprint = data.train.fingerprint(part)
        account = ledger.account(person.name, fingerprint)
        if shared and ledger.other_data(person.name, fingerprint):
            log.warning(
                "%s: this ledger knows other data under the same name; a record that is in both "
                "pays in both accounts", person.name
            )  # fmt: skip
        if person.budget and guaranteed and ledger.budget(account) is None:
            ledger.set_budget(account, person.budget)
        event = person.run_event
        if private and event is not None and not ledger.certify(account, event):
            log.warning("%s: its budget in the ledger does not hold this whole run", person.name)
        sites.append(Site(person, account, torch.from_numpy(part).to(device)))
    return sites


def _filled(network: nn.Module, lane_model: LaneModel, final: Tensor) -> nn.Module:
    """The user's model with the trained weights, on the CPU."""
    network = network.cpu()
    named = lane_model.layout.named(final.detach().cpu().clone())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in named:
                parameter.copy_(named[name])
    return network


def _worst(statements: Mapping[str, PrivacyStatement], settings: Config) -> PrivacyStatement:
    """The statement of the client that spent most, which holds for everyone at its delta."""
    return max(statements.values(), key=lambda s: (s.epsilon, s.vector_epsilon))


def _section(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
