"""What the server sees: claims that are true hold, and one that is not is called out."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from tests.attacks.toys import small_run, with_less_noise  # noqa: E402
from udpfl.attacks import Target  # noqa: E402
from udpfl.attacks.base import silent  # noqa: E402
from udpfl.attacks.membership._recorded import recorded_scores, rounds_seen  # noqa: E402
from udpfl.attacks.membership.server_view import ServerView, worst_subject  # noqa: E402
from udpfl.attacks.membership.statistics import name_at  # noqa: E402
from udpfl.attacks.pool import Pool  # noqa: E402
from udpfl.errors import InvalidInput, Unsupported  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SEEN = {"rounds": 4, "trials": 400}


def test_a_claim_that_is_true_is_not_exceeded(private_run, data):
    found = ServerView(SEEN).run(Target.open(private_run, data=data))
    assert not found.exceeded
    assert found.figure(name_at(0.01)).cap == pytest.approx(0.0272, abs=1e-4)
    assert "no more than" in found.verdict or "would allow more" in found.verdict


def test_a_false_claim_is_called_out(private_run, data):
    attack = ServerView({**SEEN, "trials": 1000})
    attack.protection = with_less_noise(0.2)
    found = attack.run(Target.open(private_run, data=data))
    rate = found.figure(name_at(0.01))
    assert found.exceeded
    assert rate.exceeds
    assert rate.low > rate.cap
    assert "MORE THAN THE CLAIM" in found.verdict


def test_the_attacker_sees_the_rounds_that_are_asked_for(private_run, data):
    target = Target.open(private_run, data=data)
    for rounds, steps in ((1, 1), (3, 3), (9, 4)):  # the run has four
        assert worst_subject(target, rounds)[0].steps == steps


def test_a_run_without_noise_has_no_worst_case(attacked_run, data):
    with pytest.raises(Unsupported, match="without noise"):
        ServerView().run(Target.open(attacked_run, data=data))


def test_too_few_trials_are_refused(private_run, data):
    with pytest.raises(InvalidInput, match="trials"):
        ServerView({"trials": 10}).run(Target.open(private_run, data=data))


def test_messages_that_were_not_recorded_cannot_be_attacked(attacked_run, data):
    with pytest.raises(InvalidInput, match="record_updates"):
        ServerView({"record": "recorded"}).run(Target.open(attacked_run, data=data))


def test_recorded_updates_of_a_private_run_stay_within_the_claim(private_run, data):
    target = Target.open(private_run, data=data)
    assert rounds_seen(target) == [1, 2]
    found = ServerView({"record": "recorded"}).run(target)
    assert not found.exceeded
    assert 0 < found.figure(name_at(0.01)).cap < 0.0272  # two of four rounds cost less


def test_recorded_updates_without_noise_show_who_was_there(tmp_path, data):
    folder = small_run(
        tmp_path / "run", training={"sampling_rate": 1.0, "local_steps": 1}, record_updates=[1, 2]
    )
    found = ServerView({"record": "recorded"}).run(Target.open(folder, data=data))
    assert found.figure("AUC").value > 0.75
    assert found.figure("AUC").cap is None


def test_the_score_is_the_likelihood_ratio_of_normal_noise(private_run, data):
    """Written out for one record: the update undone, and two normal densities."""
    target = Target.open(private_run, data=data)
    pool = Pool.of(target, 2000, 0)
    scores, exact = recorded_scores(target, pool, [1], silent)
    assert exact
    record = 0
    client = target.owner[pool.train_rows[record]]
    plan = target.plans[client]
    message = next(m for m in target.messages() if m.client == plan.name and m.round == 1)
    moved = -message.tensors["update"].double() * plan.rate * plan.declared_size / 0.5
    network = target.setup.network
    loss = torch.nn.functional.cross_entropy(network(pool.inputs[:1]), pool.targets[:1])
    parts = torch.autograd.grad(loss, list(network.parameters()))
    v = torch.cat([part.flatten() for part in parts]).double()
    v = v / max(1.0, float(v.norm()))
    deviation = plan.release.mechanism.variance**0.5
    ratio = float((moved @ v - v @ v / 2) / deviation**2)
    wanted = np.log(1 - plan.rate + plan.rate * np.exp(ratio))
    assert scores[record] == pytest.approx(wanted, rel=1e-4)
