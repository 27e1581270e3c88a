"""Loaders and streams have batches of a fixed size: they are refused with what to bring."""

from __future__ import annotations

import pytest
import torch

import udpfl
from udpfl import InvalidInput


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.full((3,), float(i % 2)), i % 2


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(Points())

    def __len__(self):
        return 40


class DPDataLoader(torch.utils.data.DataLoader):
    """As Opacus has it."""

    sample_rate = 0.1


LOADER = torch.utils.data.DataLoader(Points(), batch_size=8, shuffle=True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (LOADER, r"fixed size.*Poisson.*hand over loader\.dataset"),
        ([LOADER, LOADER], r"fixed size.*Poisson.*hand over loader\.dataset"),
        (DPDataLoader(Points()), r"loader\.dataset and set training\.sampling_rate to 0\.1"),
        (torch.utils.data.DataLoader(Stream()), r"fixed size"),
        (Stream(), r"Stream is a stream.*records themselves"),
        ((x for x in Points()), "generator is a stream"),
    ],
)
def test_loaders_and_streams_are_refused_with_what_to_bring(data, reason, tmp_path):
    with pytest.raises(InvalidInput, match=reason) as error:
        udpfl.run(model="logistic", data=data, out=str(tmp_path / "r"))
    assert error.value.parameter == "data"
    assert not (tmp_path / "r").exists()


def test_the_data_set_of_a_loader_is_taken(tmp_path):
    run = udpfl.run(
        {"data": {"clients": 2}}, model="logistic", data=LOADER.dataset, out=str(tmp_path / "r"),
        training={"rounds": 1, "sampling_rate": 0.2},
    )  # fmt: skip
    assert run.privacy.kind == "guarantee"


@pytest.mark.filterwarnings("ignore")
def test_a_live_opacus_loader_is_refused(tmp_path):
    opacus = pytest.importorskip("opacus.data_loader", reason="Opacus is not installed")
    loader = opacus.DPDataLoader.from_data_loader(LOADER)
    with pytest.raises(InvalidInput, match=r"training\.sampling_rate to 0\.2"):
        udpfl.run(model="logistic", data=loader, out=str(tmp_path / "r"))
