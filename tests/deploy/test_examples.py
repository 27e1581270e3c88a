"""The unit files, the compose file and the Dockerfile: read, and held against each other."""

from __future__ import annotations

import re

import pytest

from tests.repository import EXAMPLES

PLACE = EXAMPLES / "deployment"


def test_volumes_belong_to_the_users_that_write_to_them():
    """The image has a folder at the place of every volume, of the user that owns it."""
    services = pytest.importorskip("yaml").safe_load((PLACE / "compose.yaml").read_text())
    made = {
        path: (user, group, mode)
        for user, group, mode, path in re.findall(
            r"install -d -o (\d+) -g (\d+) -m (\d+) (/\S+)", (PLACE / "Dockerfile").read_text()
        )
    }
    used = set()
    for name, own in services["services"].items():
        user, group = own["user"].split(":")
        assert own["read_only"], name
        assert own["environment"]["FLWR_TELEMETRY_ENABLED"] == "0", name
        for volume in own["volumes"]:
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                assert volume.endswith(":ro")
                continue
            used.add(source)
            owner, owners, mode = made[target]
            if owner != user:  # whoever only connects
                assert (owners, mode) == (group, "750"), (name, target)
    assert used == set(services["volumes"])


def test_a_unit_writes_where_it_may():
    for unit in PLACE.glob("systemd/*.service"):
        text = unit.read_text()
        (writable,) = re.findall(r"^ReadWritePaths=(\S+)$", text, re.M)
        assert f"WorkingDirectory={writable}\n" in text, unit.name
        for state in re.findall(r'state = "([^"]+)"', text):
            assert state.startswith(f"{writable}/"), unit.name
