from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Runs without --out land in a folder of their own, and no data of this machine is found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UDPFL_DATA_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def config(tmp_path):
    """Three clients, three rounds, Laplace noise on a small table."""
    rng = np.random.default_rng(0)
    lines = ["a,b,c,kind"]
    for i in range(75):
        values = rng.normal(size=3) + 3 * np.eye(3)[i % 3]
        lines.append(",".join(f"{value:.4f}" for value in values) + f",{'xyz'[i % 3]}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "small.toml"
    path.write_text(
        """
        [data]
        name = "table"
        clients = 3
        options = { path = "table.csv", target = "kind", scale = "none" }
        [model]
        name = "logistic"
        [privacy]
        mechanism = "laplace"
        [training]
        rounds = 3
        learning_rate = 0.3
        """
    )
    return path
