"""How a run begins: its settings, its folder, and what a resumed run is held to."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from udpfl._version import __version__
from udpfl.config import Config, dump, load
from udpfl.config.models import DataConfig
from udpfl.config.reading import OWN
from udpfl.data.frames import is_columns, is_rows
from udpfl.data.records import Indices
from udpfl.errors import InvalidInput
from udpfl.federation._calibration import why_nothing_is_claimed
from udpfl.federation._client_data import (
    require_client_count,
    stated_clients,
    warn_of_shared_records,
)
from udpfl.federation.configured_names import trusted_settings
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.setup import Setup
from udpfl.ledger.file import require_writable
from udpfl.runs.folder import RunFolder
from udpfl.runs.preprocessing import Preprocessing
from udpfl.runs.schema import Claim, Identity

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """What `run` was asked for, in one form however it was said."""

    config: Config
    folder: RunFolder | None
    """That of the run to go on with; None for a new one."""
    model: nn.Module | None
    data: Any
    among: Indices | None = None
    """Positions of the training records that the run has; None for all of them."""

    def with_records(self, among: ArrayLike) -> Asked:
        """The same of these training records alone."""
        chosen = np.asarray(among)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not len(chosen):
            raise InvalidInput("records", "must be the positions of one record or more")
        if len(np.unique(chosen)) < len(chosen):
            raise InvalidInput("records", "must name every record once")
        if self.config.privacy.ledger is not None:
            raise InvalidInput(
                "records",
                "some of the records cannot be charged to a shared ledger, where it would not show "
                "which; hand these records over as the data of the run",
            )
        return replace(self, among=chosen.astype(np.int64))


def read_arguments(
    config: Config | Mapping[str, Any] | str | Path | None,
    resume: str | Path | None,
    model: nn.Module | Mapping[str, Any] | str | None,
    data: Any,
    sections: Mapping[str, Any],
) -> Asked:
    """Sort out which arguments are settings and which are a model or data of one's own."""
    if isinstance(model, str):
        model = {"name": model}
    if isinstance(model, Mapping):
        sections, model = {**sections, "model": model}, None
    if model is not None and not isinstance(model, nn.Module):
        raise InvalidInput("model", f"must be an nn.Module, a name or a section, got {model!r}")
    if isinstance(data, Mapping) and not _is_table(data):
        sections, data = {**sections, "data": data}, None
    if resume is not None:
        if config is not None or sections:
            raise InvalidInput(
                "resume", "continues a run with its own settings: give no other settings"
            )
        folder = RunFolder.open(Path(resume))
        return Asked(trusted_settings(folder), folder, model, data)
    own: dict[str, Any] = dict(sections)
    for name, given in (("model", model), ("data", data)):
        if given is not None:
            own[name] = {**_section(own.get(name)), "name": OWN}
    if isinstance(data, list) and not is_rows(data):
        for stated in (sections, config):
            require_client_count(stated_clients(stated), len(data))
        own["data"]["clients"] = len(data)
    return Asked(load(config, own), None, model, data)


def _is_table(data: Mapping[str, Any]) -> bool:
    """Whether a dict is a table of columns, and not the section `data`."""
    return is_columns(data) and not data.keys() <= DataConfig.model_fields.keys()


def _section(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def prepare(asked: Asked, unclaimed: str | None) -> None:
    """Refuse a shared ledger that the run must not, or cannot, be charged to; set the threads."""
    ledger = asked.config.privacy.ledger
    if ledger and unclaimed:
        raise InvalidInput(
            "privacy.ledger",
            f"{unclaimed}: such a run is not private, so it cannot be charged to the shared ledger "
            f"{ledger!r}",
        )
    if ledger and asked.folder is None:
        require_writable(Path(ledger), "privacy.ledger")
    if asked.config.threads is not None:
        torch.set_num_threads(asked.config.threads)


def check(setup: Setup) -> None:
    """Refuse a model that the engine cannot train, and warn of settings that are hardly meant."""
    setup.check_model()
    warn_of_shared_records(setup.data, setup.parts, setup.names)
    setup.show_public_records()
    _advise(setup.config)


def _advise(settings: Config) -> None:
    """Warn of settings that are allowed but hardly ever meant."""
    privacy, training = settings.privacy, settings.training
    clips_records = privacy.enabled and privacy.unit != "client"
    if not clips_records and training.learning_rate > 1:
        log.warning(
            "training.learning_rate = %g is for gradients that are clipped and noised, but here "
            "local steps take gradients as they are: 0.1 is a better start",
            training.learning_rate,
        )
    if training.learning_rate * training.penalty > 1:
        log.warning(
            "training.penalty = %g times training.learning_rate = %g is above 1: clients may be "
            "pulled beyond the model that they are pulled to",
            training.penalty,
            training.learning_rate,
        )


def begin_folder(
    setup: Setup,
    plans: Sequence[ReleasePlan],
    unclaimed: str | None,
    run: str | None = None,
    proposal: str | None = None,
) -> RunFolder:
    """A new folder with all that a run begins with.

    `run` is its id, where a server gave it, and `proposal` what that server proposed.
    """
    settings, now = setup.config, datetime.now().astimezone()
    name = f"{settings.data.name}-{settings.training.algorithm}".replace(":", "-")
    default = Path("runs") / f"{name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = RunFolder.create(Path(settings.out) if settings.out else default)
    folder.write_config(dump(settings))
    folder.write_clients([plan.to_row() for plan in plans])
    folder.write_records(setup.parts, setup.public, setup.data)
    folder.write_preprocessing(Preprocessing.of(setup.data))
    if proposal is not None:
        folder.write_proposal(proposal)
    shared = settings.privacy.ledger
    identity = Identity(
        id=run or secrets.token_hex(8),
        privacy=_claim(settings, unclaimed),
        server_adds_noise=setup.algorithm.trusts_server,
        task=setup.data.task,
        udpfl=__version__,
        torch=torch.__version__,
        started=now.isoformat(timespec="seconds"),
        fingerprints=tuple(setup.fingerprints),
        block=settings.data.block,
        # A shared ledger stays where it is, wherever the run is resumed from.
        ledger=str(Path(shared).absolute()) if shared else None,
        # Whoever gets folder and ledger together finds it by this.
        ledger_from_here=_way(folder.path, Path(shared)) if shared else None,
    )
    folder.write_identity(identity)  # last: with it the folder can be resumed
    return folder


def _claim(config: Config, unclaimed: str | None) -> Claim:
    """What is claimed of a run that begins."""
    if reason := why_nothing_is_claimed(config, unclaimed):
        return Claim("none", reason)
    if config.privacy.accounting == "scalar":
        return Claim("nominal", "scalar accounting, not a privacy guarantee")
    return Claim("guarantee", "vector accounting, a guarantee")


def _way(folder: Path, file: Path) -> str:
    return os.path.relpath(file.resolve(), folder.resolve())
