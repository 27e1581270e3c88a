"""`udpfl.run`: from a configuration to a trained model and a ledger, top to bottom."""

from __future__ import annotations

import copy
import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from udpfl._version import __version__
from udpfl.accounting import PrivacyStatement
from udpfl.accounting.rounding import rounding_of_event
from udpfl.accounting.statement import largest
from udpfl.algorithms import Algorithm, PublicData
from udpfl.config import Config, PrivacyConfig, dump, load
from udpfl.data import DataSet
from udpfl.data.records import Indices
from udpfl.engine import Entropy, Keyed, LaneModel, Loss
from udpfl.engine.limits import choose_limits
from udpfl.errors import InvalidInput
from udpfl.federation.admission import Holding, admit, plan_within, require_charges
from udpfl.federation.clients import Clients, Site
from udpfl.federation.combinations import check_combination
from udpfl.federation.evaluation import final_evaluation
from udpfl.federation.local_training import Protection, Trainer
from udpfl.federation.names import settings_of
from udpfl.federation.observers import Observer, announce
from udpfl.federation.outcome import Run
from udpfl.federation.own_noise import own_noise
from udpfl.federation.participants import Participant, planned, selection
from udpfl.federation.parts import (
    OWN,
    algorithm_of,
    dataset_of,
    device_of,
    loss_of,
    network_of,
    prepared,
)
from udpfl.federation.ranges import require_range
from udpfl.federation.rounds import Federation, listed
from udpfl.federation.shares import (
    assumptions,
    client_names,
    divided,
    fingerprints_of,
    fitted,
    is_divided,
    pool_fingerprint,
    require_public,
)
from udpfl.federation.stages import Stage
from udpfl.federation.stages.adaptive_clip import AdaptiveClip
from udpfl.federation.stages.averaging import Averaging
from udpfl.federation.stages.budget_pull import BudgetPull
from udpfl.federation.stages.downlink_noise import DownlinkNoise
from udpfl.federation.stages.shuffler import NOTE, Shuffler, shuffle_notes
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.ledger.chain import Head
from udpfl.ledger.charges import TRUSTED
from udpfl.ledger.file import require_writable
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import digests
from udpfl.runs.folder import RunFolder
from udpfl.runs.names import ENDED_WITH
from udpfl.runs.schema import Claim, ClientRow, Evaluation, Identity, Stamp, Summary

log = logging.getLogger(__name__)


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | Mapping[str, Any] | str | None = None,
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
    `udpfl.data.as_dataset` takes; a mapping for either is a section like the others. `loss` gives
    one number per sample. `resume` continues a run folder; code that only the folder names is
    refused until `udpfl.plugins.trust` allows it. Observers see every released message and every
    round's model. `protection` replaces clipping and noise: for audits, so nothing is claimed for
    such a run.
    """
    began = time.perf_counter()
    if isinstance(model, str):
        model = {"name": model}
    if isinstance(model, Mapping):
        sections, model = {**sections, "model": model}, None
    if model is not None and not isinstance(model, nn.Module):
        raise InvalidInput("model", f"must be an nn.Module, a name or a section, got {model!r}")
    if isinstance(data, Mapping):
        sections, data = {**sections, "data": data}, None
    folder, settings = _opened(config, resume, sections, model, data)
    unclaimed = "clipping and noise were replaced" if protection else None
    if unclaimed and settings.privacy.ledger:
        raise InvalidInput(
            "privacy.ledger",
            f"{unclaimed}: such a run is not private and cannot be charged to "
            f"{settings.privacy.ledger!r}, a ledger that counts",
        )
    if folder is None and settings.privacy.ledger:
        require_writable(Path(settings.privacy.ledger), "privacy.ledger")
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = device_of(settings.device)

    dataset = dataset_of(settings, data, test)
    settings = fitted(settings, dataset)
    parts, public = divided(settings, dataset)

    algorithm = algorithm_of(settings)
    check_combination(settings, algorithm)
    require_public(algorithm, public)
    network = network_of(settings, model, dataset)
    lane_model = LaneModel(network, loss or loss_of(dataset.task)).to(device)
    start = lane_model.initial().to(device)
    inputs = prepared(network, dataset.train.inputs, device)
    targets = torch.from_numpy(dataset.train.targets).to(device)
    test_inputs = prepared(network, dataset.test.inputs, device, "data.test")
    test_targets = torch.from_numpy(dataset.test.targets).to(device)
    require_range(lane_model, {"data": (inputs, targets), "data.test": (test_inputs, test_targets)})
    per_sample = lane_model.check(start, test_inputs, test_targets)
    rows = torch.from_numpy(public).to(device)
    algorithm.prepare(PublicData(lane_model, inputs[rows], targets[rows], settings.seed))

    schedule = selection(settings)
    _advise(settings)
    fingerprints = fingerprints_of(settings, dataset, parts)
    is_shared = settings.privacy.ledger is not None
    holding = Holding(
        client_names(settings, dataset, parts),
        fingerprints,
        [len(part) for part in parts],
        pool_fingerprint(dataset) if is_shared and is_divided(settings, dataset, parts) else "",
        settings.data.block or "",
    )
    if folder is None:
        people = plan_within(
            settings,
            holding,
            schedule,
            lambda asked, pasts: planned(
                settings, dataset, parts, asked, lane_model.layout.dimension, algorithm, pasts
            ),
        )
        folder = _begun(
            settings, algorithm, people, parts, public, dataset, fingerprints, unclaimed
        )
    people = [Participant.from_dict(row.to_dict()) for row in folder.clients]
    identity = folder.identity
    _require_same_model(people, lane_model.layout.dimension)
    begun = fingerprints if identity.fingerprints is None else identity.fingerprints
    _require_same_data(people, begun, fingerprints)
    schedule = [tuple(i for i in chosen if people[i].rounds) for chosen in schedule]
    noise = own_noise(settings, algorithm, [person.declared_size for person in people])

    ledger_path = Path(identity.ledger) if identity.ledger else folder.ledger
    with folder.locked():
        require_charges(ledger_path, folder, identity.id, holding.parts, holding.block)
    with folder.locked(), Ledger(ledger_path) as ledger:
        accounts = admit(
            settings, ledger, identity.id, folder.path, holding, people, unclaimed is None
        )
        if ledger.is_new and identity.ledger:
            log.warning("charges go to %s (new): no run has used this ledger before", ledger_path)
        seconds_before = folder.drop_summary()
        sites = [
            Site(person, account, torch.from_numpy(part).to(device), fingerprint)
            for person, account, part, fingerprint in zip(
                people, accounts, parts, fingerprints, strict=True
            )
        ]
        limits = choose_limits(
            settings.training.lanes,
            lanes=max(len(chosen) for chosen in schedule),
            dimension=lane_model.layout.dimension,
            bytes_per_sample=per_sample,
            memory=settings.training.memory << 20,
            chunk=settings.training.chunk,
            device=device,
            threads=1 if protection else torch.get_num_threads(),
        )
        seeded = settings.privacy.randomness == "seeded"
        key = f"seed-{settings.seed}"
        stream = Keyed(settings.seed) if seeded else Entropy()
        clients = Clients(
            run=identity.id,
            trainer=Trainer(
                key, lane_model, inputs, targets, algorithm, stream, limits, protection
            ),
            ledger=ledger,
            note=TRUSTED if algorithm.trusts_server else NOTE if settings.training.shuffle else "",
            note_charge=folder.note_charge,
        )
        federation = Federation(
            config=settings,
            folder=folder,
            run=identity.id,
            model=lane_model,
            algorithm=algorithm,
            clients=clients,
            sites=sites,
            schedule=schedule,
            ledger=ledger,
            test=(test_inputs, test_targets),
            task=dataset.task,
            observers=observers,
            unclaimed=unclaimed,
            stages=_stages(
                settings,
                people,
                start,
                TrustedServer.of(folder, key, stream, people) if algorithm.trusts_server else None,
                Shuffler(key, stream if seeded else None) if settings.training.shuffle else None,
                None if protection else DownlinkNoise.of(noise, key, stream),
            ),
            assumptions=(
                *((noise.claim,) if noise else ()),
                *assumptions(settings, dataset, data, algorithm, public),
                *shuffle_notes(settings, people, bool(algorithm.client_init(start))),
            ),
        )
        announce(observers, "on_start", settings, folder.path)
        final = federation.train(start)
        if algorithm.trusts_server:
            ledger.forget(identity.id, len(schedule))  # what clients sent was for one reader
        ledger.give_back(identity.id)
        head = ledger.head()  # others may charge a shared ledger meanwhile
        statements = federation.statements(head[0])
        trained = _filled(network, lane_model, final)
        privacy = largest(statements.values())
        if federation.metrics:  # else nobody has trained, and there is no model to hand on
            folder.write_model(dict(trained.state_dict()), Stamp.of(privacy, head))
        found = final_evaluation(lane_model, final, test_inputs, test_targets, dataset)
        folder.write_evaluation(Evaluation.from_dict(found))
        result = Run(
            folder=folder.path,
            config=settings,
            model=trained,
            privacy=privacy,
            clients=statements,
            metrics=federation.metrics,
            ledger_path=ledger_path,
            ledger_is_new=ledger.is_new,
            # A resumed run took as long as all its rounds, not as long as this call.
            seconds=max(
                time.perf_counter() - began,
                sum(row["seconds"] for row in federation.metrics),
                seconds_before,
            ),
            stopped=federation.stopped,
            references=dataset.references,
        )
        outcome = {
            **result.outcome(),
            "device": str(device),
            "parameters": lane_model.layout.dimension,
            "rounding": _rounding(people, privacy),
            "server_adds_noise": algorithm.trusts_server,
            "assumptions": list(federation.assumptions),
        }
        decided = ledger.end_run(
            identity.id, head=head, files=digests(folder.path, ENDED_WITH), outcome=outcome
        )
        folder.write_summary(
            Summary(
                outcome=outcome,
                privacy=privacy,
                statement=str(privacy),
                run=str(folder.path),
                clients=statements,
                head=Head(*head),
                decided=Head(*decided),
                budgets={s.participant.name: _held(ledger, s, decided[0]) for s in sites},
            )
        )
        announce(observers, "on_end", result)
    return result


def _stages(
    config: Config,
    people: Sequence[Participant],
    start: Tensor,
    trusted: TrustedServer | None,
    shuffler: Shuffler | None,
    downlink: DownlinkNoise | None,
) -> list[Stage]:
    """What a run has of the stages, in their order."""
    privacy, quantile = config.privacy, config.privacy.clip_quantile
    pull = [own.name for own in people if own.penalty == 0 and own.release is not None]
    found = [
        trusted,  # before the noise nobody else may see what clients sent
        BudgetPull(pull) if config.training.penalty else None,
        AdaptiveClip(quantile, privacy.clip_rate) if quantile is not None else None,
        shuffler,  # takes names off, so whoever needs them comes before
        downlink,
        Averaging(start, config.training.averaging),
    ]
    return [stage for stage in found if stage is not None]


def _rounding(people: Sequence[Participant], privacy: PrivacyStatement) -> float:
    """What rounding of noise adds to delta at most, for the client that has most of it."""
    events = [event for person in people if (event := person.rest_event(0)) is not None]
    most = max((rounding_of_event(own, privacy.epsilon).total for own in events), default=0.0)
    if privacy.kind != "none" and most > privacy.delta / 100:
        log.warning("rounding of the noise may add %.1g to a delta of %g", most, privacy.delta)
    return most


def _held(ledger: Ledger, site: Site, decided: int) -> tuple[float, float] | None:
    """The budget in the ledger at that decision, which need not be the configured one."""
    budgets = ledger.budgets(site.account, decided)
    return (budgets[-1].epsilon, budgets[-1].delta) if budgets else None


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
        return folder, settings_of(folder)
    own: dict[str, Any] = dict(sections)
    for name, given in (("model", model), ("data", data)):
        if given is not None:
            own[name] = {**_section(own.get(name)), "name": OWN}
    if isinstance(data, list):
        own["data"]["clients"] = len(data)
    return None, load(config, own)


def _advise(settings: Config) -> None:
    """Settings that are allowed and hardly ever meant."""
    privacy, training = settings.privacy, settings.training
    clips_records = privacy.enabled and privacy.unit == "record"
    if not clips_records and training.learning_rate > 1:
        log.warning(
            "training.learning_rate = %g suits clipped, noisy gradients; where records are not "
            "clipped, 0.1 with training.server_momentum = 0.9 is a better start",
            training.learning_rate,
        )
    if training.learning_rate * training.penalty > 1:
        log.warning(
            "training.penalty = %g at training.learning_rate = %g may pull clients past the model "
            "they are pulled to: their product should not be above 1",
            training.penalty,
            training.learning_rate,
        )


def _begun(
    settings: Config,
    algorithm: Algorithm,
    people: Sequence[Participant],
    parts: Sequence[Indices],
    public: Indices,
    dataset: DataSet,
    fingerprints: Sequence[str],
    unclaimed: str | None,
) -> RunFolder:
    now = datetime.now().astimezone()
    name = f"{settings.data.name}-{settings.training.algorithm}".replace(":", "-")
    default = Path("runs") / f"{name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = RunFolder.create(Path(settings.out) if settings.out else default)
    folder.write_config(dump(settings))
    folder.write_clients([ClientRow.from_dict(person.to_dict()) for person in people])
    folder.write_records(parts, public, dataset)
    shared = settings.privacy.ledger
    identity = Identity(
        id=secrets.token_hex(8),
        privacy=_claim(settings.privacy, unclaimed),
        server_adds_noise=algorithm.trusts_server,
        task=dataset.task,
        udpfl=__version__,
        torch=torch.__version__,
        started=now.isoformat(timespec="seconds"),
        fingerprints=tuple(fingerprints),
        block=settings.data.block,
        # A shared ledger stays where it is, wherever the run is resumed from.
        ledger=str(Path(shared).absolute()) if shared else None,
        # Whoever gets folder and ledger together finds it by this.
        ledger_from_here=_way(folder.path, Path(shared)) if shared else None,
    )
    folder.write_identity(identity)  # last: with it the folder can be resumed
    return folder


def _claim(privacy: PrivacyConfig, unclaimed: str | None) -> Claim:
    """What is claimed of a run that begins; `unclaimed` is why nothing is."""
    if not privacy.enabled:
        return Claim("none", "privacy is turned off")
    if unclaimed:
        return Claim("none", unclaimed)
    if privacy.randomness == "seeded":
        return Claim("none", "noise and sampling are seeded")
    if privacy.accounting == "scalar":
        return Claim("nominal", "scalar accounting, not a privacy guarantee")
    return Claim("guarantee", "vector accounting, a guarantee")


def _way(folder: Path, file: Path) -> str:
    return os.path.relpath(file.resolve(), folder.resolve())


def _require_same_model(people: Sequence[Participant], dimension: int) -> None:
    for person in people:
        planned = person.release and person.release.sensitivity.dimension
        if planned not in (None, dimension):
            raise InvalidInput(
                "resume", f"the run was planned for {planned} parameters, the model has {dimension}"
            )


def _require_same_data(
    people: Sequence[Participant], begun: Sequence[str], found: Sequence[str]
) -> None:
    """Refuse to go on with other records than those that were charged."""
    pairs = zip(people, begun, found, strict=True)
    changed = [person.name for person, before, now in pairs if before != now]
    if changed:
        raise InvalidInput(
            "resume",
            f"the records of {listed(changed)} are not those that the run was begun with: a run "
            "goes on with the same data, or a new one is begun",
        )


def _filled(network: nn.Module, lane_model: LaneModel, final: Tensor) -> nn.Module:
    """The user's model with the trained weights, on the CPU."""
    network = copy.deepcopy(network).cpu()
    named = lane_model.layout.named(final.detach().cpu().clone())
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in named:
                parameter.copy_(named[name])
    return network


def _section(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
