"""Shadow models: who is in which, whose account pays, and that none is trained twice."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from tests.attacks.toys import RECORDS, noise_records, settings, small_run  # noqa: E402
from tests.small import PowerCut, Stops  # noqa: E402
from udpfl import Ledger  # noqa: E402
from udpfl.attacks import Target, shadows  # noqa: E402
from udpfl.attacks.pool import Pool  # noqa: E402
from udpfl.attacks.shadows import deal_slots, keep_matrix, shadow_models  # noqa: E402
from udpfl.config import load  # noqa: E402
from udpfl.errors import InvalidInput, Unsupported  # noqa: E402
from udpfl.federation import RunFolder, run  # noqa: E402
from udpfl.federation.plan import ReleasePlan  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("pairs", [1, 3, 8])
def test_every_record_is_in_exactly_half_of_the_shadows(pairs):
    slots = [0] * 10 + [1] * 4 + [2] * 6
    keep = keep_matrix(pairs, slots, seed=1)
    assert (keep.sum(axis=0) == pairs).all()
    assert (keep[0::2] == ~keep[1::2]).all()
    for client, size in ((0, 5), (1, 2), (2, 3)):  # clients hold as many as in the target
        assert (keep[:, np.array(slots) == client].sum(axis=1) == size).all()


def test_more_shadows_go_on_where_fewer_ended():
    few, many = keep_matrix(2, [0] * 8, seed=0), keep_matrix(4, [0] * 8, seed=0)
    np.testing.assert_array_equal(few, many[:4])
    assert not np.array_equal(few, keep_matrix(2, [0] * 8, seed=1))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_shadows_come_in_pairs(attacked_run, data, count):
    target = Target.open(attacked_run, data=data)
    with pytest.raises(InvalidInput, match="shadows"):
        shadow_models(target, Pool.of(target, 2000, 0), count, 0)


def test_a_held_out_record_takes_the_client_of_a_member_like_it(attacked_run, data):
    target = Target.open(attacked_run, data=data)
    pool = Pool.of(target, 2000, 0)
    slots = deal_slots(target, pool)
    np.testing.assert_array_equal(slots[pool.is_member], target.owner[pool.train_rows])
    for client in range(2):
        held = slots == client
        assert (held & pool.is_member).sum() == (held & ~pool.is_member).sum()


def made(target, monkeypatch, records=2000, count=2):
    """What shadows are trained on, without training them."""
    found = []
    monkeypatch.setattr(
        shadows, "train_shadows",
        lambda wanted, network, loss, told: found.extend(wanted) or [torch.zeros(1)] * count,
    )  # fmt: skip
    models = shadow_models(target, Pool.of(target, records, 0), count, 0)
    return found, models.keep


def test_a_shadow_is_what_the_run_would_have_been_on_other_records(private_run, data, monkeypatch):
    target = Target.open(private_run, data=data)
    wanted, keep = made(target, monkeypatch)
    for shadow, row in zip(wanted, keep, strict=True):
        assert len(shadow.own_data.train) == RECORDS == row.sum()
        clients = shadow.own_data.columns["client"]
        assert np.unique(clients, return_counts=True)[1].tolist() == [
            len(part) for part in target.setup.parts
        ]
        plain = shadow.config.model_dump()
        for section in ("privacy", "training"):
            own, of_target = plain[section], target.config.model_dump()[section]
            own.pop("checkpoint_every", None), of_target.pop("checkpoint_every", None)
            assert own == of_target
        assert shadow.config.seed == target.config.seed
        assert shadow.config.data.declared_sizes == [p.declared_size for p in target.plans]


def test_the_records_of_a_shadow_are_those_of_its_row(attacked_run, data, monkeypatch):
    target = Target.open(attacked_run, data=data)
    wanted, keep = made(target, monkeypatch)
    pool = Pool.of(target, 2000, 0)
    for shadow, row in zip(wanted, keep, strict=True):
        trained = {own.tobytes() for own in shadow.own_data.train.inputs}
        there = [own.tobytes() in trained for own in pool.inputs.numpy()]
        assert there == row.tolist()


def test_records_that_are_not_attacked_are_in_every_shadow(attacked_run, data, monkeypatch):
    target = Target.open(attacked_run, data=data)
    wanted, _ = made(target, monkeypatch, records=20)
    attacked = {own.tobytes() for own in Pool.of(target, 20, 0).inputs.numpy()}
    known = {own.tobytes() for own in data.train.inputs} - attacked
    for shadow in wanted:
        trained = {own.tobytes() for own in shadow.own_data.train.inputs}
        assert known <= trained
        assert len(trained) == RECORDS


def test_the_attacker_pays_on_accounts_of_its_own(private_run, data):
    before = charges(private_run / "ledger.sqlite")
    target = Target.open(private_run, data=data)
    shadow_models(target, Pool.of(target, 2000, 0), 2, 0)
    folders = sorted((private_run / "attacks/shadows").iterdir())
    assert len(folders) == 2
    for folder in folders:
        with Ledger(folder / "ledger.sqlite", read_only=True) as ledger:
            names = [account.client for account in ledger.accounts()]
        assert sorted(names) == ["shadow 0 of client-0", "shadow 1 of client-1"]
        plans = [ReleasePlan.from_row(row) for row in RunFolder(folder).clients]
        for plan, of_target in zip(plans, target.plans, strict=True):
            assert plan.release == of_target.release
            assert plan.declared_size == of_target.declared_size
    assert charges(private_run / "ledger.sqlite") == before


def charges(path):
    with Ledger(path, read_only=True) as ledger:
        return ledger.head()


def test_a_shadow_is_trained_once(attacked_run, data, monkeypatch):
    target = Target.open(attacked_run, data=data)
    pool = Pool.of(target, 2000, 0)
    first = shadow_models(target, pool, 2, 0)
    monkeypatch.setattr(shadows, "run_together", None)  # nothing may be trained any more
    again = shadow_models(target, pool, 2, 0)
    assert torch.equal(first.parameters, again.parameters)


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_a_crash_cut_short_is_gone_on_with(tmp_path, data, monkeypatch, at_once):
    folder = small_run(tmp_path / "run", training={"checkpoint_every": 1})
    target = Target.open(folder, data=data)
    pool, train, asked = Pool.of(target, 2000, 0), shadows.run_together, []

    def dies(configs, **others):
        asked.extend(type(own).__name__ for own in configs)
        if len(asked) <= at_once:
            others["observers"] = lambda number: [Stops(2)]
        return train(configs, **others)

    monkeypatch.setattr(shadows, "run_together", dies)
    monkeypatch.setattr(shadows, "AT_ONCE", {"cpu": at_once})
    with pytest.raises(PowerCut):
        shadow_models(target, pool, 2, 0)
    models = shadow_models(target, pool, 2, 0)
    assert len(models) == 2
    assert asked[0] == "Config"
    assert asked.count("Resumed") == at_once


def test_shadows_that_are_trained_together_are_those_that_are_trained_alone(
    tmp_path, data, monkeypatch
):
    found = []
    for at_once in (1, 4):
        own = tmp_path / str(at_once)
        folder = small_run(own, privacy={"mechanism": "gaussian", "randomness": "seeded"})
        target = Target.open(folder, data=data)
        monkeypatch.setattr(shadows, "AT_ONCE", {"cpu": at_once})
        found.append(shadow_models(target, Pool.of(target, 2000, 0), 4, 0))
    assert (found[0].keep == found[1].keep).all()
    torch.testing.assert_close(found[0].parameters, found[1].parameters, rtol=1e-4, atol=1e-5)


def test_a_shadow_that_was_edited_is_refused(tmp_path, data):
    folder = small_run(tmp_path / "run")
    target = Target.open(folder, data=data)
    pool = Pool.of(target, 2000, 0)
    shadow_models(target, pool, 2, 0)
    for shadow in (folder / "attacks/shadows").iterdir():
        other = shadow / "model.safetensors"
        other.write_bytes(other.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(InvalidInput, match="not the file that the run wrote"):
        shadow_models(target, pool, 2, 0)


def test_another_setting_is_another_shadow(private_run, attacked_run, data, monkeypatch):
    names = []
    for folder in (private_run, attacked_run):
        wanted, _ = made(Target.open(folder, data=data), monkeypatch)
        names.append({own.folder.name for own in wanted})
    assert not names[0] & names[1]


def test_public_records_are_refused(tmp_path):
    data = noise_records()
    run(settings(tmp_path / "run", data={"clients": 2, "public": 10}), data=data)
    target = Target.open(tmp_path / "run", data=data)
    with pytest.raises(Unsupported, match="public"):
        shadow_models(target, Pool.of(target, 2000, 0), 2, 0)


def test_the_settings_of_a_shared_ledger_lead_to_one_of_its_own(tmp_path, data):
    shared = {"mechanism": "gaussian", "ledger": str(tmp_path / "shared.sqlite")}
    folder = small_run(tmp_path / "run", privacy=shared)
    before, target = charges(tmp_path / "shared.sqlite"), Target.open(folder, data=data)
    assert len(shadow_models(target, Pool.of(target, 2000, 0), 2, 0)) == 2
    assert charges(tmp_path / "shared.sqlite") == before
    own = shadows._settings(target, "elsewhere")
    assert own.privacy.ledger == "elsewhere.sqlite"
    assert json.loads(load(own).model_dump_json())["privacy"]["mechanism"] == "gaussian"
