"""Whole clients as the unit: clipped updates, their noise, and their one account."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import udpfl
from tests.federation.client_unit.samples import trusted
from tests.small import WIDE, Seen, Wide, blobs, linear, people_of
from udpfl.accounting import PoissonSampled, Release, Repeated
from udpfl.accounting.serial import event_to_json
from udpfl.algorithms import ClientMessage
from udpfl.engine import Keyed, MechanismNoiser, NormClipper, Unclipped
from udpfl.errors import BudgetExceeded, InvalidInput, LedgerError, Unsupported
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.stage_builder import sum_noise
from udpfl.federation.stages.trusted_server import TrustedServer
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder

# Clipping a whole update


@given(
    st.integers(0, 2**32), st.sampled_from(["l1", "l2", "linf"]), st.floats(1e-3, 1e3),
    st.floats(-30, 30),
)  # fmt: skip
def test_a_clipped_update_is_within_its_bound(seed, norm, bound, scale):
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed)) * 10.0**scale
    rows[1, 3] = float("nan")
    clipped = NormClipper(norm, [bound] * 3).clipped_rows(rows).sum.double()
    order = {"l1": 1, "l2": 2, "linf": float("inf")}[norm]
    assert torch.linalg.vector_norm(clipped, order, dim=1).max() <= bound
    assert not clipped[1].any()  # not finite: counts as nothing
    small = rows[[0]].double().nan_to_num() * (
        0.9 * bound / torch.linalg.vector_norm(rows[0].double(), order)
    )
    kept = NormClipper(norm, [bound]).clipped_rows(small.float()).sum
    assert torch.allclose(kept.double(), small, rtol=1e-5, atol=0)


# Noise at the client


def test_updates_carry_the_noise_that_was_planned_and_charged(federate):
    """Without a step of training an update is the noise itself."""
    result, seen = federate({"epsilon": 3.0}, {"learning_rate": 1e-12}, net=Wide())
    for person, message in zip(people_of(result), seen.messages, strict=False):
        noise = message.tensors["update"].numpy()
        std = person.release.mechanism.std
        assert stats.kstest(noise, stats.norm(0, std).cdf).pvalue > 1e-6
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(noise, stats.norm(0, wrong * std).cdf).pvalue < 1e-12
        assert message.events == (event_to_json(Repeated(PoissonSampled(1.0, person.release), 1)),)
    first, second = seen.messages[0].tensors["update"], seen.messages[1].tensors["update"]
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(WIDE)


def test_a_round_costs_one_release_however_many_steps_it_takes(federate):
    result, _ = federate({"epsilon": 2.0}, {"local_steps": 7, "sampling_rate": 0.5, "rounds": 4})
    with Ledger(result.ledger_path, read_only=True) as ledger:
        for account in ledger.accounts():
            entries = list(ledger.history(account.id))
            assert sum(entry.count for entry in entries) == 4
            assert {entry.event.rate for entry in entries} == {1.0}
            assert {entry.event.event.unit for entry in entries} == {"client"}
    assert result.privacy.unit == "client"
    assert result.privacy.epsilon <= 2.0
    exact = people_of(result)[0].release
    stated = udpfl.account(Repeated(Release(exact.mechanism, exact.sensitivity), 4), 1e-3).epsilon
    assert result.privacy.epsilon == pytest.approx(stated, rel=1e-3)


def test_what_leaves_is_clipped_however_large_the_step(federate):
    """Noise aside: an auditor who takes it away sees updates within the bound."""

    class Silent(MechanismNoiser):
        def add(self, sums, stream, keys):
            return sums

    def protection(people):
        bounds = [person.release.sensitivity.bound for person in people]
        return NormClipper("l2", bounds), Silent([p.release.mechanism for p in people])

    _, seen = federate({"clip": 0.25}, {"learning_rate": 50.0}, protection=protection)
    sizes = [float(m.tensors["update"].norm()) for m in seen.messages]
    assert max(sizes) == pytest.approx(0.25, rel=1e-3)
    assert max(sizes) <= 0.25 * (1 + 1e-6)

    def unclipped(people):
        return Unclipped(), Silent([p.release.mechanism for p in people])

    _, seen = federate({"clip": 0.25}, {"learning_rate": 50.0}, protection=unclipped)
    assert max(float(m.tensors["update"].norm()) for m in seen.messages) > 1


def test_units_do_not_mix_in_one_account(federate, tmp_path):
    shared = str(tmp_path / "shared.sqlite")
    federate({"ledger": shared, "epsilon": 5.0})
    with pytest.raises((LedgerError, Unsupported, InvalidInput), match=r"unit|client|record"):
        federate({"ledger": shared, "epsilon": 5.0, "unit": "record"})


@pytest.mark.parametrize("divided", [False, True])
def test_a_client_cannot_change_its_data_to_get_a_new_budget(tmp_path, divided):
    shared = {"unit": "client", "delta": 1e-3, "ledger": str(tmp_path / "l.sqlite")}

    def train(out, change):
        x, y = blobs()
        x = x + np.float32(change)
        parts = np.array_split(np.arange(len(x)), 3)
        data = (x, y) if divided else [(x[part], y[part]) for part in parts]
        settings = {
            "out": str(tmp_path / out), "privacy": shared, "training": {"rounds": 1},
            "data": {"clients": 3} if divided else {},
        }  # fmt: skip
        return udpfl.run(settings, data=data, test=blobs(), model=linear())

    first = train("first", 0.0)
    with pytest.raises(BudgetExceeded, match="client-0, client-1, client-2: the budget in"):
        train("second", 1e-3)
    assert not (tmp_path / "second").exists()
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert len(ledger.accounts()) == 3
        for own in ledger.accounts():
            assert ledger.versions(own.id) == [ledger.data_of(next(ledger.history()).run)[own.id]]
            ledger.set_budget(own.id, udpfl.Budget(30.0, 1e-3), reason="another version")
    third = train("third", 1e-3)
    assert third.privacy.epsilon > first.privacy.epsilon  # both of them count
    with Ledger(tmp_path / "l.sqlite", read_only=True) as ledger:
        for own in ledger.accounts():
            assert len(ledger.versions(own.id)) == 2
            assert len(list(ledger.history(own.id))) == 2


def test_updates_are_within_the_bound_when_they_are_summed(tmp_path):
    """Rounding on the way may lengthen an update: the server clips once more."""
    folder = RunFolder.create(tmp_path / "run")
    release = Release(udpfl.Gaussian(1e-12), udpfl.Sensitivity(1.0, "l2", 3), "client")
    server = TrustedServer(
        folder, "k", Keyed(0), sum_noise([ReleasePlan("a", 9, 1.0, 5, 1, release)])
    )
    long = ClientMessage("a", 1, {"update": torch.tensor([3.0, 4.0, 0.0])}, (), {})
    (merged,) = server.receive(1, {}, [long])
    assert merged.tensors["update"].tolist() == pytest.approx([0.6, 0.8, 0.0], rel=1e-3)


def test_an_empty_file_is_not_taken_for_no_file(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    release = Release(udpfl.Gaussian(1.0), udpfl.Sensitivity(1.0, "l2", 3), "client")
    server = TrustedServer(
        folder, "k", Keyed(0), sum_noise([ReleasePlan("a", 9, 1.0, 5, 1, release)])
    )
    folder.write_aggregate(1, b"")
    with pytest.raises(InvalidInput):
        server.receive(1, {}, [ClientMessage("a", 1, {"update": torch.zeros(3)}, (), {})])


def test_a_run_without_a_readable_checkpoint_is_not_begun_anew(federate):
    result, _ = trusted(federate, 1.0)
    for checkpoint in (result.folder / "checkpoints").iterdir():
        checkpoint.write_bytes(b"damaged")
    with pytest.raises(LedgerError, match="no checkpoint"):
        udpfl.run(resume=result.folder, model=Wide(), data=blobs())


def test_a_run_that_stopped_early_can_go_on(federate, tmp_path):
    shared = tmp_path / "shared.sqlite"

    def set_budgets(epsilon, reason=""):
        with Ledger(shared) as ledger:
            accounts = [own.id for own in ledger.accounts()]
            ledger.set_budgets(accounts, udpfl.Budget(epsilon, 1e-3), reason=reason)

    class Lowers(Seen):
        """The budget that a run has reserved is taken away after its second round."""

        def on_round(self, row):
            if row["round"] == 2:
                set_budgets(0.9)

    training = {"rounds": 6, "checkpoint_every": 10}
    short, _ = trusted(federate, 1.0, training, Lowers(), ledger=str(shared), epsilon=1.0)
    assert short.stopped
    assert short.metrics[-1]["round"] == 2
    set_budgets(1.0, "as it was")
    resumed = udpfl.run(resume=short.folder, model=Wide(), data=blobs())
    assert resumed.stopped is None
    assert resumed.metrics[-1]["round"] == 6


def test_the_report_speaks_of_the_client(federate):
    result, _ = federate({"epsilon": 2.0})
    page = (result.folder / "report.html").read_text()
    assert "whether a client with all its records was there" in page
    assert "which costs twice the ε" in page
    assert "whether a record was there" not in page
