"""Figures about pictures, against scikit-image and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from udpfl.attacks.reconstruction.metrics import mae, mse, pair, psnr, ssim
from udpfl.errors import InvalidInput


def pictures(count=4, channels=3, side=12, seed=0):
    rng = np.random.default_rng(seed)
    smooth = rng.random((count, channels, side, side)).cumsum(2).cumsum(3)
    smooth /= smooth.max()
    return smooth, np.clip(smooth + 0.1 * rng.normal(size=smooth.shape), 0, 1)


# structural_similarity(a, b, data_range=1, channel_axis=0) of scikit-image 0.26.0
KNOWN = {
    (3, 12, 7): [0.74587171773074, 0.73856566203151, 0.74342951230327],
    (1, 28, 7): [0.43217353832059, 0.40511693949628, 0.38035248554009],
    (1, 8, 5): [0.77882352195061, 0.81323000139572, 0.82132214691124],
}


@pytest.mark.parametrize(("channels", "side", "window"), list(KNOWN))
def test_structural_similarity_is_that_of_scikit_image(channels, side, window):
    known = KNOWN[channels, side, window]
    a, b = pictures(3, channels, side)
    np.testing.assert_allclose(ssim(a, b, window), known, atol=1e-12)


@pytest.mark.parametrize(("channels", "side", "window"), list(KNOWN))
def test_every_figure_against_scikit_image_itself(channels, side, window):
    metrics = pytest.importorskip("skimage.metrics")
    a, b = pictures(3, channels, side, seed=5)
    for own, name in ((psnr, "peak_signal_noise_ratio"), (mse, "mean_squared_error")):
        wanted = getattr(metrics, name)
        more = {"data_range": 1} if own is psnr else {}
        theirs = [wanted(x, y, **more) for x, y in zip(b, a, strict=True)]
        np.testing.assert_allclose(own(a, b), theirs, rtol=1e-12)
    theirs = [
        metrics.structural_similarity(x, y, data_range=1, channel_axis=0, win_size=window)
        for x, y in zip(a, b, strict=True)
    ]
    np.testing.assert_allclose(ssim(a, b, window), theirs, atol=1e-12)


def test_errors_by_hand():
    a, b = np.zeros((2, 1, 8, 8)), np.zeros((2, 1, 8, 8))
    b[1] = 0.5
    assert mse(a, b).tolist() == [0, 0.25]
    assert mae(a, b).tolist() == [0, 0.5]
    np.testing.assert_allclose(psnr(a, b), [120, 10 * np.log10(4)])
    assert ssim(a, a).tolist() == [1, 1]


def test_what_is_blacker_than_black_is_black_and_what_is_no_number_is_grey():
    a, b = np.full((1, 1, 8, 8), -3.0), np.zeros((1, 1, 8, 8))
    assert mse(a, b) == 0
    assert mse(np.full_like(a, 7.0), b) == 1
    assert mse(np.full_like(a, np.nan), b) == 0.25


def test_a_batch_is_paired_as_well_as_it_can_be():
    rng = np.random.default_rng(1)
    found, originals = rng.random((4, 1, 2, 2)), rng.random((6, 1, 2, 2))
    chosen = pair(found, originals)
    assert len(set(chosen.tolist())) == 4

    def cost(order):
        return np.square(found - originals[list(order)]).sum()

    best = min(cost(order) for order in itertools.permutations(range(6), 4))
    assert cost(chosen) == pytest.approx(best)


def test_shuffled_originals_are_found_again():
    a, b = pictures(8)
    order = np.random.default_rng(2).permutation(8)
    assert pair(b[order], a).tolist() == order.tolist()


@pytest.mark.parametrize(
    ("call", "about"),
    [
        (lambda a: ssim(a, a, 6), "window"),
        (lambda a: ssim(a, a, 13), "window"),
        (lambda a: mse(a, a[:1]), "pictures"),
        (lambda a: mse(a[0], a[0]), "pictures"),
        (lambda a: pair(a, a[:2]), "originals"),
    ],
)
def test_what_does_not_fit_together_is_refused(call, about):
    with pytest.raises(InvalidInput, match=about):
        call(pictures()[0])
