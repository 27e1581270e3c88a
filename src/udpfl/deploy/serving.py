"""A deployed run from its file to its model: find the sites, propose, train, keep what they say."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from udpfl.config import Config, load
from udpfl.deploy._journal import Journal
from udpfl.deploy._replies import ReplyCheck
from udpfl.deploy.settings import Federation
from udpfl.deploy.sites import Directory, RemoteSites, gather
from udpfl.deploy.transport import Transport
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.configured_names import trusted_settings
from udpfl.federation.observers import Observer
from udpfl.federation.single_server import (
    Inputs,
    ServedRun,
    ServerSetup,
    begin_server_folder,
    serve,
)
from udpfl.runs.folder import RunFolder
from udpfl.runs.names import PROPOSAL
from udpfl.site.settings import settings_to_propose
from udpfl.site.wire import SiteFacts

if TYPE_CHECKING:
    from torch import nn

    from udpfl.data.records import Task

log = logging.getLogger(__name__)


def run_federation(
    federation: Federation,
    transport: Transport,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    model: nn.Module | None = None,
    observers: Sequence[Observer] = (),
) -> ServedRun:
    """Train one model over sites on other machines, each within its own policy.

    Args:
        federation: What its file says.
        transport: Reaches the sites.
        out: Folder for the run; a new one under runs/ if left out.
        resume: The folder of a run to go on with, in place of a new one.
        model: The architecture, where it is not one of the configuration.
        observers: See every message and every round.

    Returns:
        The model, and what the sites say that they have spent.

    Raises:
        RunPaused: Too few sites answer; the run can be resumed.
        InvalidInput: A setting is wrong, or the sites do not fit together.

    Example:
        >>> from udpfl.deploy import Federation, RunPaused, run_federation
        >>> class Nobody:
        ...     def nodes(self): return []
        >>> own = Federation.of({"deploy": {"start_timeout": 0.1}})
        >>> try: run_federation(own, Nobody())
        ... except RunPaused as error: print(error)
        not all sites were there after 0.1 seconds: 0 of 10
    """
    directory = Directory(transport)
    if resume is not None:
        folder = RunFolder.open(Path(resume))
        setup, settings = _resumed(folder, federation, directory, model)
    else:
        setup, settings = _begun(federation, directory, model)
        folder = RunFolder.create(_place(federation, out))
        folder.write_proposal(json.dumps(settings))
        begin_server_folder(setup, folder)
    with folder.locked():
        sizes_of = {name: directory.facts[name].declared_size for name in setup.names}
        sites = RemoteSites(
            folder.identity.id,
            settings,
            setup.names,
            directory,
            federation.deploy,
            ReplyCheck.of(setup, sizes_of),
            Journal(folder.path),
            folder,
        )
        log.info("run %s in %s: %s", folder.identity.id, folder.path, ", ".join(setup.names))
        served = serve(setup, folder, sites, observers)
        sites.finish()
    return served


def _begun(
    federation: Federation, directory: Directory, model: nn.Module | None
) -> tuple[ServerSetup, dict[str, Any]]:
    """A new run: with the sites that are there, and what they declare."""
    names = gather(directory, federation.deploy, federation.config.data.clients)
    facts = [directory.facts[name] for name in names]
    sizes = [own.declared_size for own in facts]
    settings = settings_to_propose(federation.config, sizes)
    config = load(federation.config, {"data": {"declared_sizes": sizes}})
    return _setup(replace(federation, config=config), names, facts, model), settings


def _setup(
    federation: Federation,
    names: Sequence[str],
    facts: Sequence[SiteFacts],
    model: nn.Module | None,
) -> ServerSetup:
    has_records = federation.deploy.evaluate == "test"
    return ServerSetup.for_server(
        federation.config, names, _inputs(facts), model, has_records=has_records
    )


def _resumed(
    folder: RunFolder, federation: Federation, directory: Directory, model: nn.Module | None
) -> tuple[ServerSetup, dict[str, Any]]:
    """A run that goes on: with its own settings and its own sites."""
    names = folder.identity.sites
    if names is None:
        raise InvalidInput("resume", f"{str(folder.path)!r} is not a run of a deployment")
    stored = _stored(folder, federation)
    settings = json.loads((folder.path / PROPOSAL).read_text(encoding="utf-8"))
    deploy = federation.deploy.model_copy(update={"sites": list(names)})
    gather(directory, deploy, len(names))
    known = replace(federation, config=stored)
    facts = [directory.facts[name] for name in names]
    return _setup(known, names, facts, model), settings


def _stored(folder: RunFolder, federation: Federation) -> Config:
    """The settings of a run that goes on; what the app's own file names may be imported."""
    try:
        return trusted_settings(folder, federation.config)
    except Unsupported as error:
        raise Unsupported(
            f"{error}; a deployed run may import what the federation.toml of its app names: name "
            "it there as when the run began"
        ) from None


def _inputs(facts: Sequence[SiteFacts]) -> Inputs:
    """What the records of all sites look like."""
    found = {(own.input_shape, own.outputs, own.task, own.input_type): own.site for own in facts}
    if len(found) > 1:
        said = "; ".join(f"{site}: {shape}, {n} outputs" for (shape, n, *_), site in found.items())
        raise InvalidInput("data", f"the records of the sites are not alike: {said}")
    ((shape, outputs, task, type_),) = found
    if task not in ("classification", "regression"):
        raise InvalidInput("data.task", f"a site says that its task is {task!r}")
    return Inputs(shape, outputs, cast("Task", task), type_)


def _place(federation: Federation, out: str | Path | None) -> Path:
    if out or federation.config.out:
        return Path(str(out or federation.config.out))
    now = datetime.now().astimezone()
    return Path("runs") / f"deployed-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
