"""`udpfl.load`: the model of a finished run, with all that it takes to use it on new records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from udpfl.accounting import PrivacyStatement
from udpfl.algorithms.message import tensors_from_bytes
from udpfl.config import Config
from udpfl.config import load as load_config
from udpfl.config.reading import OWN
from udpfl.data import frames
from udpfl.data.columns import Schema
from udpfl.data.csv_files import Dialect, Table, find_files, read_files
from udpfl.data.records import Array, DataSet, Records
from udpfl.engine import LaneModel
from udpfl.errors import InvalidInput, UdpflError
from udpfl.federation.builders import (
    build_network,
    choose_loss,
    prepare_inputs,
)
from udpfl.federation.configured_names import trusted_settings
from udpfl.federation.evaluation import final_evaluation
from udpfl.federation.setup import Setup
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import digests
from udpfl.runs.files import RunFiles, has_ended, read_identity, read_preprocessing
from udpfl.runs.folder import RunFolder
from udpfl.runs.ledgers import ledger_of
from udpfl.runs.preprocessing import Preprocessing
from udpfl.runs.schema import FinalEvaluation
from udpfl.trained.predictions import Predictions

log = logging.getLogger(__name__)

_BATCH = 1024


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model of a run. `load` makes one."""

    folder: Path
    """Of the run; nothing in it is changed."""
    config: Config
    """The settings of the run."""
    model: nn.Module
    """The network with its trained weights, on the CPU, in evaluation mode."""
    privacy: PrivacyStatement
    """What its clients have spent: that of the client with the largest spending."""
    preprocessing: Preprocessing
    """What a record has to become before the model, and what its outputs mean."""

    def __repr__(self) -> str:
        return f"<TrainedModel {self.config.model.name} of {self.folder}: {self.privacy}>"

    def predict(
        self, data: Any, *, keep: Sequence[str] = (), dialect: Dialect | None = None
    ) -> Predictions:
        """What the model says of new records.

        Args:
            data: For a model of a table: a data frame, a dict of columns, rows that are dicts, or
                the path of a CSV file. For any model: inputs as an array [n, ...], which are taken
                as the model's own inputs, after any scaling.
            keep: Columns of the table that shall stand beside the predictions.
            dialect: How the CSV file is written; as the files of the run if left out.

        Returns:
            Labels and probabilities, or numbers in the units of their columns.

        Raises:
            InvalidInput: A column is missing, or cells cannot be read.
        """
        schema = self.preprocessing.table
        if isinstance(data, str | Path) or _is_table(data):
            table = self.read(data, dialect)
            read_by = self._schema_for(data, dialect)
            encoded = read_by.encode(table, with_targets=False, parameter="data")
            kept = {name: _column(table, name) for name in keep}
            rows, used = encoded.inputs[encoded.present], encoded.present
            return Predictions(self.preprocessing, self.outputs(rows), used, kept)
        inputs = _array(data)
        if schema is not None and inputs.ndim == 2 and inputs.shape[1] != schema.width:
            raise InvalidInput(
                "data",
                f"the model takes {schema.width} inputs, got {inputs.shape[1]}: give a table with "
                f"the columns {', '.join(own.name for own in schema.features)}, which is scaled "
                "as in the run, or inputs that are scaled already",
            )
        return Predictions(self.preprocessing, self.outputs(inputs), np.ones(len(inputs), bool))

    def outputs(self, inputs: Any) -> Array:
        """The model's own answers [n, ...] to inputs [n, ...] as it takes them."""
        array = _array(inputs).astype(self.preprocessing.input_type)
        if array.shape[1:] != self.preprocessing.input_shape:
            raise InvalidInput(
                "data",
                f"a record must have the shape {self.preprocessing.input_shape}, "
                f"got {array.shape[1:]}",
            )
        if not len(array):
            return np.zeros((0, self.preprocessing.outputs), dtype=np.float32)
        prepared = prepare_inputs(self.model, array, torch.device("cpu"))
        with torch.no_grad():
            parts = [self.model(part) for part in prepared.split(_BATCH)]
        answers: Array = torch.cat(parts).numpy()
        return answers

    def evaluate(
        self,
        data: Any = None,
        *,
        dialect: Dialect | None = None,
        data_dir: str | Path | None = None,
    ) -> FinalEvaluation:
        """How good the model is on records whose targets are known.

        Args:
            data: A table with the target columns, as for `predict`; (inputs, targets); or, if left
                out, the test records of the run, which are loaded again.
            dialect: How a CSV file is written; as the files of the run if left out.
            data_dir: Where the data of the run lies, if it is elsewhere now.

        Returns:
            Accuracy or errors, and the confusion matrix or errors by output.
        """
        records = self._test_records(data_dir) if data is None else self._records(data, dialect)
        about, task = self.preprocessing, self.preprocessing.task
        classes = None if task == "regression" else max(2, about.outputs)
        dataset = DataSet(
            "evaluated", task, records, records, classes, class_names=about.class_names
        )
        model = LaneModel(self.model, choose_loss(task))
        inputs = prepare_inputs(self.model, records.inputs, torch.device("cpu"))
        targets = torch.from_numpy(records.targets)
        found = final_evaluation(model, model.initial(), inputs, targets, dataset)
        return FinalEvaluation.from_dict(found)

    def errors(self, found: FinalEvaluation) -> dict[str, tuple[float, float]]:
        """Mean absolute and root mean squared error of each target, in the units of its column."""
        table = self.preprocessing.table
        if table is None or not table.targets:
            return {}
        each = zip(found.mae_by_output or (), found.rmse_by_output or (), strict=True)
        return {
            own.name: (own.width_in_units * float(mae or 0), own.width_in_units * float(rmse or 0))
            for own, (mae, rmse) in zip(table.targets, each, strict=True)
        }

    def _test_records(self, data_dir: str | Path | None) -> Records:
        if self.config.data.name == OWN:
            raise InvalidInput(
                "data", "the data of this run was given in Python: say what to evaluate on"
            )
        config = self.config
        if data_dir is not None:
            config = load_config(config, {"data": {"dir": str(data_dir)}})
        setup, identity = Setup.of(config, model=self.model), read_identity(self.folder)
        is_deployed = identity.sites is not None  # then these are the server's own records
        if not is_deployed and tuple(setup.fingerprints) != identity.fingerprints:
            raise InvalidInput(
                "data",
                "the data has changed since this run, so its test records are not known any more: "
                "say what to evaluate on",
            )
        return setup.data.test

    def _records(self, data: Any, dialect: Dialect | None) -> Records:
        if isinstance(data, tuple):
            return Records(_array(data[0]), np.asarray(data[1]))
        read_by = self._schema_for(data, dialect)
        encoded = read_by.encode(self.read(data, dialect), parameter="data")
        assert encoded.targets is not None
        if not encoded.present.any():
            raise InvalidInput("data", "every row has a missing cell: none is left")
        return Records(encoded.inputs[encoded.present], encoded.targets[encoded.present])

    def read(self, data: Any, dialect: Dialect | None = None) -> Table:
        """New rows as a table of text."""
        dialect = dialect or self._schema.dialect
        if isinstance(data, str | Path):
            return read_files(find_files(data, None), dialect)
        return frames.text_of(frames.columns_of(data), "the table", self._schema.dialect.decimal)

    def _schema_for(self, data: Any, dialect: Dialect | None) -> Schema:
        """How cells are read, of a file that may be written otherwise than those of the run."""
        is_file = isinstance(data, str | Path)
        return replace(self._schema, dialect=dialect) if dialect and is_file else self._schema

    @cached_property
    def _schema(self) -> Schema:
        if self.preprocessing.table is None:
            raise InvalidInput(
                "data",
                "the model was not trained on a table: give inputs of the shape "
                f"{self.preprocessing.input_shape} as an array (.npy)",
            )
        return self.preprocessing.table


def load(run: str | Path, *, model: nn.Module | None = None) -> TrainedModel:
    """The model of a finished run, to predict, evaluate and export.

    Nothing in the run folder is changed. Predictions cost no privacy: whatever is computed from the
    model alone keeps its guarantee.

    Args:
        run: The folder of the run.
        model: The architecture, where it was given in Python; its weights do not matter.

    Returns:
        The model with its weights, its statement, and how records become inputs.

    Raises:
        InvalidInput: There is no finished run, it has no model, or the architecture does not fit.

    Example:
        >>> import numpy as np, udpfl
        >>> settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "out": "letters"}
        >>> records = np.eye(8, dtype="float32"), ["a", "b"] * 4
        >>> done = udpfl.run(settings, data=records, model="logistic", privacy="none")
        >>> udpfl.load("letters").predict(np.eye(8)).probabilities.shape
        (8, 2)
    """
    folder = RunFolder.open(Path(run), "run")
    config = trusted_settings(folder)
    preprocessing = read_preprocessing(folder.path)
    if preprocessing is None:
        raise InvalidInput(
            "run", f"{str(run)!r} was written by an older version, which kept no preprocessing"
        )
    if not has_ended(folder.path) or not folder.model.is_file():
        raise InvalidInput("run", f"{str(run)!r} has no model: its run did not finish")
    _require_sealed(folder.path)
    stamp = RunFiles.read(folder.path).stamp  # in the model's file, which is sealed
    assert stamp is not None
    assert stamp.stated is not None, "only an older version stored no statement"
    if model is None and config.model.name == OWN:
        raise InvalidInput(
            "model", "the model of this run was given in Python: pass it as udpfl.load(…, model=)"
        )
    network = build_network(config, model, preprocessing.input_shape, preprocessing.outputs)
    return TrainedModel(
        folder.path, config, _with_weights(network, folder.model), stamp.stated, preprocessing
    )


def _with_weights(network: nn.Module, file: Path) -> nn.Module:
    try:
        tensors, _ = tensors_from_bytes(file.read_bytes())
    except OSError as error:
        raise UdpflError(f"cannot read {file}: {error.strerror}") from None
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise InvalidInput("model", f"the weights do not fit the network: {error}") from None
    return network.eval()


def _is_table(data: Any) -> bool:
    return frames.is_table(data) and not isinstance(data, np.ndarray | Tensor)


def _require_sealed(folder: Path) -> None:
    """Refuse files that are not those that the run began and ended with, by its ledger."""
    identity = read_identity(folder)
    path = ledger_of(folder, identity)
    if not path.is_file():
        whose = "the ledgers of its sites are" if identity.sites else "its ledger is"
        log.warning("%s: %s not here, so nothing says that no file was edited", folder, whose)
        return
    with Ledger(path, read_only=True) as ledger:
        sealed = ledger.sealed(identity.id)
    begun, ended = sealed.begun_with or {}, sealed.ending.files if sealed.ending else {}
    for wanted in (begun, ended):
        found = digests(folder, wanted)
        if edited := sorted(name for name in wanted if found.get(name) != wanted[name]):
            raise InvalidInput(
                "run", f"{edited[0]} in {str(folder)!r} is not the file that the run wrote"
            )


def _array(values: Any) -> Array:
    tensor = isinstance(values, Tensor)
    array = np.asarray(values.detach().cpu().numpy() if tensor else values)
    if array.dtype.kind not in "iubf" or array.ndim == 0:
        raise InvalidInput("data", f"must be an array of numbers or a table, got {array.dtype}")
    return array


def _column(table: Table, name: str) -> Sequence[str]:
    if name not in table.columns:
        raise InvalidInput("keep", f"there is no column {name!r}")
    return table.columns[name]
