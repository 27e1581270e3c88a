"""Exported models compute what the module computes, and carry what they mean."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import udpfl
from tests.commands import command
from tests.trained.conftest import people
from udpfl import InvalidInput
from udpfl.trained import export


@pytest.fixture(scope="module")
def trained(table_run):
    return udpfl.load(table_run)


def test_onnx(trained, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = export(trained, tmp_path / "model.onnx", "onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    new = people(33, seed=9)
    inputs = trained.preprocessing.table.encode(trained.read(new)).inputs.astype(np.float32)
    for rows in (inputs, inputs[:1]):
        (outputs,) = session.run(None, {"inputs": rows})
        assert np.abs(outputs - trained.outputs(rows)).max() < 1e-5
    meaning = json.loads(session.get_modelmeta().custom_metadata_map["udpfl"])
    assert meaning["preprocessing"]["table"]["labels"] == ["yes", "no"]
    assert meaning["statement"] == str(trained.privacy)


def test_a_network_with_a_fixed_part(tmp_path):
    pytest.importorskip("onnx")
    images = np.random.default_rng(0).random((12, 1, 28, 28), dtype=np.float32)
    done = udpfl.run(
        {"out": str(tmp_path / "run"), "privacy": "none", "training": {"rounds": 1}},
        data=[(images, np.arange(12) % 3)], model="scattering",
    )  # fmt: skip
    trained = udpfl.load(done.folder)
    path = export(trained, tmp_path / "model.pt", "torchscript")
    with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
        loaded = torch.jit.load(path)
    outputs = loaded(torch.from_numpy(images)).detach().numpy()
    assert np.abs(outputs - trained.outputs(images)).max() < 1e-5
    with pytest.raises(InvalidInput, match=r"cannot be written as onnx: .*torchscript"):
        export(trained, tmp_path / "model.onnx", "onnx")  # its wavelets are complex numbers


def test_torchscript(trained, tmp_path):
    path = export(trained, tmp_path / "model.pt", "torchscript")
    extra = {"udpfl.json": ""}
    with pytest.warns(DeprecationWarning, match=r"torch\.jit"):  # torch prefers torch.export now
        loaded = torch.jit.load(path, _extra_files=extra)
    rows = torch.rand(7, 4)
    assert np.abs(loaded(rows).detach().numpy() - trained.outputs(rows)).max() < 1e-6
    assert json.loads(extra["udpfl.json"])["privacy"]["kind"] == "guarantee"


def test_state_dict(trained, tmp_path):
    path = export(trained, tmp_path / "weights.pt", "state-dict")
    found = torch.load(path, weights_only=True)
    wanted = trained.model.state_dict()
    assert found["state_dict"].keys() == wanted.keys()
    assert all(torch.equal(found["state_dict"][name], own) for name, own in wanted.items())


def test_refusals(trained, tmp_path):
    with pytest.raises(InvalidInput, match="format: must be one of onnx"):
        export(trained, tmp_path / "model.h5", "keras")
    with pytest.raises(udpfl.UdpflError, match="nowhere"):
        export(trained, tmp_path / "nowhere" / "model.onnx", "state-dict")


def test_a_file_name_does_not_decide_the_format(capsys, table_run, tmp_path):
    code, _, err = command(capsys, "export", table_run, "--out", tmp_path / "model.pt")
    assert code == 2
    assert "say which format" in err
    code, out, _ = command(capsys, "export", table_run, "--format", "state-dict", "--out",
                           tmp_path / "model.pt")  # fmt: skip
    assert code == 0
    assert "inputs [n, 4], outputs [n, 2]" in out
