"""MLflow: one MLflow run per training, in a local SQLite file or wherever MLFLOW_TRACKING_URI says.

MLflow reports its own usage to its makers and repeats a failing request for minutes. Neither suits
a private training: both are turned down here, unless the environment says otherwise.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from udpfl.runs.files import read_identity
from udpfl.trackers.base import Tracker, imported

if TYPE_CHECKING:
    from udpfl.config import Config
    from udpfl.federation import Run

_MANNERS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_IDENTITY = "udpfl.run"
_PARAMETERS = 100  # that one request may carry
_LENGTH = 500  # that every MLflow server takes


class MLflow(Tracker):
    """Logs to the experiment "udpfl", at `uri` or where MLflow is set to log.

    Without any setting that is `mlflow.db` in the working folder, where `mlflow ui` looks. A
    resumed run goes on in its own MLflow run.

    Args:
        uri: The tracking server or database; where MLflow is set to log if left out.
        experiment: The name of the experiment there.
        simulation_only: Whether a server also gets figures from private data without noise
            (`simulation_only/`), which otherwise stay on this machine.

    Raises:
        MissingExtra: MLflow is not installed.
    """

    name = "MLflow"

    def __init__(
        self,
        uri: str | None = None,
        *,
        experiment: str = "udpfl",
        simulation_only: bool = False,
    ) -> None:
        super().__init__()
        for name, value in _MANNERS.items():
            os.environ.setdefault(name, value)
        self._mlflow = imported("mlflow", "mlflow")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it comments on its own tables
        self._uri, self._experiment, self._asked = uri, experiment, simulation_only
        self._client: Any = None
        self._run = ""
        self._done = 0

    def _place(self) -> str:
        if self._uri:
            return self._uri
        if self._mlflow.is_tracking_uri_set():
            return str(self._mlflow.get_tracking_uri())
        return f"sqlite:///{Path('mlflow.db').absolute()}"

    def _begin(self, config: Config, folder: Path, stamp: str) -> None:
        place = self._place()
        self._keeps_private = self._asked or is_local(place)
        self._client = self._mlflow.MlflowClient(tracking_uri=place)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            found.experiment_id if found else self._client.create_experiment(self._experiment)
        )
        run = read_identity(folder).id
        before = self._client.search_runs([experiment], f"tags.`{_IDENTITY}` = '{run}'")
        if before:
            self._run = before[0].info.run_id
            history = self._client.get_metric_history(self._run, "round/participants")
            self._done = max((metric.step for metric in history), default=0)
            self._client.update_run(self._run, status="RUNNING")
            self._stamp(self._done, stamp)
            return
        self._done = 0
        tags = {_IDENTITY: run, "udpfl.folder": str(folder)}
        tags |= {"privacy": stamp, "privacy.kind": self._kind}
        self._run = self._client.create_run(experiment, run_name=folder.name, tags=tags).info.run_id
        kind = self._mlflow.entities.Param
        plain = config.model_dump(mode="json")
        params = [kind(name, text[:_LENGTH]) for name, text in _flat("", plain)]
        for first in range(0, len(params), _PARAMETERS):
            self._client.log_batch(self._run, params=params[first : first + _PARAMETERS])

    def _write(self, round_: int, values: dict[str, float]) -> None:
        if round_ <= self._done and "round/participants" in values:
            return  # repeated after a resume, from the stored messages: the same figures again
        now = int(1000 * time.time())
        kind = self._mlflow.entities.Metric
        metrics = [kind(name, value, now, round_) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def _stamp(self, round_: int, stamp: str) -> None:
        self._client.set_tag(self._run, "privacy", stamp)
        self._client.set_tag(self._run, "privacy.kind", self._kind)

    def _finish(self, run: Run) -> None:
        self._kind = run.privacy.kind
        self._stamp(self._done, str(run.privacy))
        if run.stopped:
            self._client.set_tag(self._run, "stopped", run.stopped)
        self._client.set_terminated(self._run)


def is_local(uri: str) -> bool:
    """Whether MLflow keeps this store in files of this machine; in doubt it does not."""
    parts = urlsplit(uri)
    if parts.scheme in ("file", "sqlite"):
        return parts.netloc in ("", "localhost")
    # Databricks is also meant by its bare name, and two slashes begin the name of a host.
    named = uri in ("uc", "databricks", "databricks-uc")
    return not parts.scheme and not parts.netloc and not named and not uri.startswith("\\\\")


def _flat(prefix: str, plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Configuration keys in dots and their values as text."""
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
