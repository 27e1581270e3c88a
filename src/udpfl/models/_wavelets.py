"""Wavelet scattering of images: what stays of a picture when small shifts no longer matter.

A picture x is convolved with Morlet wavelets ψ of several scales j and orientations θ, its modulus
is taken, and that is averaged with a Gaussian φ. What the average loses is caught by a second layer
of wavelets:

    S0 = x ⋆ φ      S1[j, θ] = |x ⋆ ψ[j, θ]| ⋆ φ
    S2[j, θ, j', θ'] = ||x ⋆ ψ[j, θ]| ⋆ ψ[j', θ']| ⋆ φ  for j' > j

Convolutions are circular, averages are kept at every 2^J-th position, and a wavelet's modulus at
every 2^j-th. Nothing is learned and no record sees another.

With g a Gaussian of width 0.8 · 2^j along the direction e(θ) of oscillation, and L/4 times that
across, ψ(u) = g(u) (exp(i ξ·u) − β), ξ = ¾π 2^(−j) e(θ), and β makes the sum of ψ zero. φ has the
width 0.8 · 2^(J−1).

References: Bruna and Mallat, "Invariant Scattering Convolution Networks", IEEE TPAMI 2013. The
widths are those of Andreux et al., "Kymatio: Scattering Transforms in Python", JMLR 2020.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_AT_ONCE = 1 << 20
"""Numbers in the largest array of one pass: more would leave the processor's cache."""
_TINY = 1e-30


class Scattering2d(nn.Module):
    """Two layers of scattering of circular images; both sides are multiples of 2^scales.

    Coefficients come in this order: the average; first-order paths by scale j, then orientation;
    second-order paths by (j, j', orientation, orientation'). The k-th of L orientations is the
    direction πk/L from the horizontal axis, with rows counted downwards.
    """

    def __init__(self, height: int, width: int, scales: int, orientations: int) -> None:
        super().__init__()
        self.scales, self.orientations = scales, orientations
        self.side = (height, width)
        for name, size in (("rows", height), ("columns", width)):
            for j in range(scales):
                self._keep(f"{name}{j}", _averages(size, scales, j))
        angles = [math.pi * turn / orientations for turn in range(orientations)]
        for j in range(scales):
            full = torch.stack(
                [_morlet(height, width, j, angle, slant=4 / orientations) for angle in angles]
            )
            for i in range(max(j, 1)):  # for moduli of scale i, at every 2^i-th position
                seen = _aliases(full, 2**i).sum(0)
                self._keep(f"wavelets{i}_{j}", _aliases(seen, 2 ** (j - i)) / 4 ** (j - i))

    @property
    def paths(self) -> int:
        """Coefficients per position: 1 + J L + L² J (J − 1) / 2."""
        j, turns = self.scales, self.orientations
        return 1 + j * turns + turns**2 * j * (j - 1) // 2

    def _keep(self, name: str, values: Tensor) -> None:
        # Not in the state: they follow from the options, and are no part of what is trained.
        self.register_buffer(name, values, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """From [n, height, width] to [n, paths, height / 2^J, width / 2^J]."""
        largest = self.side[0] * self.side[1] * self.orientations**2
        return torch.cat([self._scattered(x) for x in images.split(max(1, _AT_ONCE // largest))])

    def _scattered(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        zeroth, first, second = [self._averaged(x, 0)], [], []
        spectrum = torch.fft.fft2(x)
        for j in range(self.scales):
            once = self._modulus(spectrum, 0, j)
            first.append(self._averaged(once, j))
            if j + 1 < self.scales:
                again = torch.fft.fft2(once)
            for k in range(j + 1, self.scales):
                second.append(self._averaged(self._modulus(again, j, k), k))
        return torch.cat(zeroth + first + second, dim=1)

    def _modulus(self, spectra: Tensor, i: int, j: int) -> Tensor:
        """|x ⋆ ψ| at every 2^j-th position, from the spectra of x [n, c] at every 2^i-th: [n, c L].

        The spectrum of every k-th position is the average of the aliases; the wavelets have been
        divided by their number.
        """
        parts = _aliases(spectra, 2 ** (j - i)).unsqueeze(3)
        wavelets = self.get_buffer(f"wavelets{i}_{j}")
        product = parts[0] * wavelets[0]
        for part, wavelet in zip(parts[1:], wavelets[1:], strict=True):
            product.addcmul_(part, wavelet)
        waves = torch.view_as_real(torch.fft.ifft2(product.flatten(1, 2)))
        real, imaginary = waves.unbind(-1)
        # Not `abs`, which makes a complex copy; the tiny number gives 0 a gradient of 0.
        return torch.addcmul(real.square(), imaginary, imaginary).add_(_TINY).sqrt_()

    def _averaged(self, x: Tensor, j: int) -> Tensor:
        """x ⋆ φ at every 2^J-th position, from x at every 2^j-th. φ is a product: rows, columns."""
        turned = (x @ self.get_buffer(f"columns{j}").T).transpose(-1, -2)
        return (turned @ self.get_buffer(f"rows{j}").T).transpose(-1, -2)


def _aliases(spectrum: Tensor, step: int) -> Tensor:
    """The step² parts of a spectrum that coincide when every step-th value is kept."""
    parts = spectrum.unflatten(-1, (step, -1)).unflatten(-3, (step, -1))
    return parts.movedim((-4, -2), (0, 1)).flatten(0, 1)


def _averages(size: int, scales: int, j: int) -> Tensor:
    """The matrix [size / 2^J, size / 2^j] that averages along one axis of length `size`."""
    sigma = 0.8 * 2 ** (scales - 1)
    kept = torch.arange(0, size, 2**scales, dtype=torch.float64)
    seen = torch.arange(0, size, 2**j, dtype=torch.float64)
    turns = torch.arange(-3, 4, dtype=torch.float64) * size  # the axis is a circle
    distance = kept.view(-1, 1, 1) - seen.view(1, -1, 1) + turns
    weights = torch.exp(-0.5 * (distance / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    return (2**j * weights.sum(2)).float()


def _morlet(height: int, width: int, j: int, angle: float, slant: float) -> Tensor:
    """The transform of ψ[j, angle] on the grid [height, width]: real, and exactly 0 at 0.

    The transform of a Gaussian is a Gaussian. The sum over frequencies that differ by 2π is what
    the values at whole positions have.
    """
    sigma, frequency = 0.8 * 2**j, 0.75 * math.pi / 2**j
    cosine, sine = math.cos(angle), math.sin(angle)
    y = _frequencies(height).view(height, 1, -1, 1)
    x = _frequencies(width).view(1, width, 1, -1)
    along, across = x * cosine + y * sine, (y * cosine - x * sine) / slant

    def gaussian(centre: float) -> Tensor:
        return torch.exp(-0.5 * sigma**2 * ((along - centre) ** 2 + across**2)).sum((2, 3))

    wave, bump = gaussian(frequency), gaussian(0.0)
    return (wave - wave[0, 0] / bump[0, 0] * bump).to(torch.complex64)


def _frequencies(size: int) -> Tensor:
    """The frequencies of a circle of `size` points, each with its neighbours 2π apart [size, 5]."""
    turns = torch.arange(-2, 3, dtype=torch.float64)
    return 2 * math.pi * (torch.fft.fftfreq(size, dtype=torch.float64).unsqueeze(1) + turns)
