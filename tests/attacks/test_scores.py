"""The scores of attacks with shadow models, against formulas written out record by record."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from udpfl.attacks.membership._evidence import Evidence, augmented, shifted  # noqa: E402
from udpfl.attacks.membership._signals import log_odds, log_probabilities  # noqa: E402
from udpfl.attacks.membership.lira import offline_scores, online_scores  # noqa: E402
from udpfl.attacks.membership.rmia import chosen_a, rmia_scores  # noqa: E402
from udpfl.attacks.membership.shokri import (  # noqa: E402
    ShokriOptions,
    features,
    learned_scores,
)
from udpfl.attacks.membership.statistics import Scores  # noqa: E402
from udpfl.attacks.shadows import keep_matrix  # noqa: E402
from udpfl.errors import InvalidInput  # noqa: E402


def imagined(shadows=8, records=40, queries=2, seed=0, gain=1.5):
    """What shadows and a target might say: members have larger scores of their label."""
    rng = np.random.default_rng(seed)
    keep = keep_matrix(shadows // 2, [0] * records, seed)
    truth = np.arange(records) < records // 2
    hardness = rng.normal(0, 2, records)
    labels = torch.from_numpy(rng.integers(0, 3, records))

    def says(there):
        scores = rng.normal(0, 0.5, (queries, records, 3))
        scores[:, np.arange(records), labels.numpy()] += hardness + gain * there
        return scores

    return Evidence(keep, np.stack([says(row) for row in keep]), says(truth), labels), truth


def test_log_odds_are_those_of_the_probabilities():
    scores, labels = np.random.default_rng(0).normal(0, 3, (20, 5)), torch.arange(20) % 5
    p = np.exp(log_probabilities(scores, labels))
    np.testing.assert_allclose(log_odds(scores, labels), np.log(p / (1 - p)), rtol=1e-9)


def test_log_odds_do_not_saturate():
    scores, labels = np.array([[60.0, 0.0], [0.0, 800.0]]), torch.tensor([0, 0])
    np.testing.assert_allclose(log_odds(scores, labels), [60.0, -800.0])


def independent_lira(evidence, online):
    """Algorithm 1 of the paper with one variance for all records, in plain loops."""
    shadows, seen = evidence.log_odds()
    count, queries, records = shadows.shape

    def side(there, q, i):
        return [shadows[k, q, i] for k in range(count) if bool(evidence.keep[k, i]) == there]

    spread = {}
    for there in (True, False):
        squares, used = 0.0, 0
        for q in range(queries):
            for i in range(records):
                own = side(there, q, i)
                squares += sum((value - np.median(own)) ** 2 for value in own)
                used += len(own) - 1
        spread[there] = math.sqrt(squares / used)
    found = []
    for i in range(records):
        total = 0.0
        for q in range(queries):
            out = norm(np.median(side(False, q, i)), spread[False])
            if online:
                inside = norm(np.median(side(True, q, i)), spread[True])
                total += inside.logpdf(seen[q, i]) - out.logpdf(seen[q, i])
            else:
                total += norm.isf(out.sf(seen[q, i]))
        found.append(total / queries)
    return np.array(found)


@pytest.mark.parametrize("online", [True, False])
def test_lira_is_what_an_independent_implementation_finds(online):
    evidence, _ = imagined()
    score = online_scores if online else offline_scores
    shadows, seen = evidence.log_odds()
    np.testing.assert_allclose(
        score(shadows, evidence.keep, seen), independent_lira(evidence, online), rtol=1e-6
    )


def test_lira_with_a_variance_for_each_record():
    evidence, _ = imagined(shadows=8, records=6, queries=1)
    shadows, seen = evidence.log_odds()
    found = online_scores(shadows, evidence.keep, seen, by_record=True)
    for i in range(6):
        inside, out = (shadows[evidence.keep[:, i] == there, 0, i] for there in (True, False))
        wanted = norm(np.median(inside), inside.std()).logpdf(seen[0, i])
        wanted -= norm(np.median(out), out.std()).logpdf(seen[0, i])
        assert found[i] == pytest.approx(wanted)


def test_records_of_different_hardness_do_not_count_as_noise():
    """Else the variance of all records would be that between records, and nothing would show."""
    evidence, truth = imagined(shadows=16, records=400, gain=2.0)
    shadows, seen = evidence.log_odds()
    apart = shadows + np.where(np.arange(400) % 2, 100.0, -100.0)
    moved = seen + np.where(np.arange(400) % 2, 100.0, -100.0)
    plain = online_scores(shadows, evidence.keep, seen)
    assert Scores(plain, truth).auc > 0.9
    np.testing.assert_allclose(online_scores(apart, evidence.keep, moved), plain, rtol=1e-6)


def test_lira_refuses_records_that_are_in_unequally_many_shadows():
    keep = np.array([[True, False], [True, True]])
    with pytest.raises(InvalidInput, match="same number"):
        online_scores(np.zeros((2, 1, 2)), keep, np.zeros((1, 2)))


@pytest.mark.parametrize("a", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("gamma", [1.0, 1.5])
def test_rmia_is_what_its_formula_says(a, gamma):
    evidence, _ = imagined()
    shadows, seen = evidence.probabilities(2.0)
    keep, records = evidence.keep, len(seen)
    ratio = []
    for i in range(records):
        inside, out = (shadows[keep[:, i] == there, i].mean() for there in (True, False))
        average = (inside + out) / 2 if a is None else (1 + a) / 2 * out + (1 - a) / 2
        ratio.append(seen[i] / average)
    wanted = [sum(x / z > gamma for z in ratio) / records for x in ratio]
    np.testing.assert_allclose(rmia_scores(shadows, keep, seen, a, gamma), wanted, atol=1.01 / 40)


def test_rmia_chooses_the_a_that_tells_most_on_the_shadows():
    evidence, _ = imagined()
    a = chosen_a(evidence, 2.0, 1.0)
    shadows, _ = evidence.probabilities(2.0)

    def area(tried):
        total = 0.0
        for k in range(8):
            rest = [other for other in range(8) if other // 2 != k // 2]
            score = rmia_scores(shadows[rest], evidence.keep[rest], shadows[k], tried)
            total += Scores(score, evidence.keep[k]).auc
        return total

    assert area(a) == max(area(tried / 10) for tried in range(11))


def test_a_temperature_divides_the_scores():
    evidence, _ = imagined(queries=1)
    warm = np.exp(log_probabilities(evidence.target[0] / 2, evidence.labels))
    np.testing.assert_allclose(evidence.probabilities(2.0)[1], warm)


def test_without_its_pair_a_shadow_is_attacked_by_as_many_with_as_without_each_record():
    evidence, _ = imagined()
    rest = evidence.without_pair(3)
    assert rest.keep.shape[0] == 6
    assert (rest.keep.sum(axis=0) == 3).all()
    np.testing.assert_array_equal(rest.target, evidence.shadows[3])


def test_shokri_learns_what_members_look_like():
    evidence, truth = imagined(shadows=8, records=100, gain=4.0)
    found = learned_scores(evidence, ShokriOptions(epochs=5, learning_rate=5e-3), seed=0)
    assert Scores(found, truth).auc > 0.7
    again = learned_scores(evidence, ShokriOptions(epochs=5, learning_rate=5e-3), seed=0)
    np.testing.assert_array_equal(found, again)


def test_shokri_does_not_look_at_which_class_is_which():
    scores = np.array([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
    first, second = features(scores, np.array([0, 2]))
    np.testing.assert_allclose(first, second)


@pytest.mark.parametrize("queries", [1, 2, 18])
def test_queries_begin_with_the_record_itself(queries):
    images = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    asked = augmented(images, queries)
    assert len(asked) == queries
    torch.testing.assert_close(asked[0], images)
    assert len({tuple(own.flatten().tolist()) for own in asked}) == queries


def test_an_image_is_moved_as_far_as_it_says():
    image = torch.zeros(1, 1, 12, 12)
    image[0, 0, 5, 5] = 1
    assert shifted(image, 4, -4)[0, 0, 9, 1] == 1


def test_records_that_are_no_images_have_one_query():
    with pytest.raises(InvalidInput, match="no images"):
        augmented(torch.zeros(3, 4), 2)
