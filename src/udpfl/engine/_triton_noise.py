"""Kernels for CUDA that draw noise, add it to sums and round them to a grid, in one pass.

Each lane has a row of numbers, its law: the grid, and what its noise is made with, in units of the
grid (`_fused.py` makes them of mechanisms). A number of noise is made of the uniform number of
its place, or of two of them, as `draw` of its mechanism does it; only the rounding of a few
functions differs. Radii of whole vectors are drawn here as well, so nothing waits for the device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from udpfl.engine._operators import checking
from udpfl.engine._triton import _WORDS, _require_dense, _words

_TRIES, _PARTS = 128, 256
"""Radii that are tried at once, and partial sums that are added at once."""


def signed_numbers(keys: Tensor, count: int) -> Tensor:
    """Uniform numbers in [-1, 1], never 0, of two words each, for every key [n, 4] so many."""
    _require_dense(keys)
    signed = torch.empty(len(keys), count, dtype=torch.float64, device=keys.device)
    if signed.numel():
        with checking():
            _signed_numbers[(triton.cdiv(count, _WORDS), len(keys))](keys, signed, count, _WORDS)
    return signed


@triton.jit
def _signed_numbers(keys, signed, count, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(signed + lane * count + place, _signed(keys, lane, place), mask=place < count)


@triton.jit
def _signed(keys, lane, place):
    """A number (w + f) 2^-63: w is a signed word, and f in (0, 1) is made of another one."""
    one, two = _words(keys, lane, place)
    fraction = two.to(tl.float64) * 5.421010862427517e-20 + 0.5  # 2^-64 (1 - 2^-50)
    return (one.to(tl.float64) + fraction) * 1.0842021724855044e-19  # 2^-63


def add_rounded(noise: Tensor, sums: Tensor, noisy: Tensor, laws: Tensor) -> None:
    """Write noise [L, n], in units of a lane's grid, plus the sums to `noisy`, on that grid.

    `laws` [L, m] has the grid in its first column.
    """
    _require_dense(noise, laws, sums, noisy)
    lanes, columns = sums.shape
    if noise.numel():
        with checking():
            _add_rounded[(triton.cdiv(columns, _WORDS), lanes)](
                noise, sums, noisy, laws, columns, laws.shape[1], _WORDS
            )


@triton.jit
def _add_rounded(noise, sums, noisy, laws, columns, width, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    drawn = tl.load(noise + lane * columns + place, mask=place < columns, other=0.0)
    _put(drawn, sums, noisy, tl.load(laws + lane * width), lane * columns + place, place < columns)


@triton.jit
def _put(noise, sums, noisy, grid, place, inside):
    """Noise in units of the grid, a power of two, plus a sum, rounded to whole units."""
    total = tl.load(sums + place, mask=inside, other=0.0).to(tl.float64)
    tl.store(noisy + place, tl.floor(noise + total * (1.0 / grid) + 0.5) * grid, mask=inside)


def add_noise(kind: str, sums: Tensor, noisy: Tensor, keys: Tensor, laws: Tensor) -> None:
    """Write sums [L, n] with noise of each lane's law [L, m] to `noisy`, on a grid.

    `kind` is a key of `KINDS`. A number is made of the uniform number of its place; normal numbers
    j and half + j of a lane are a pair of Box and Muller 1958.
    """
    _require_dense(keys, laws, sums, noisy)
    lanes, columns = sums.shape
    draws = -(-columns // 2) if kind == "gaussian" else columns
    if sums.numel():
        with checking():
            KINDS[kind][(triton.cdiv(draws, _WORDS), lanes)](
                sums, noisy, keys, laws, columns, draws, laws.shape[1], _WORDS
            )


@triton.jit
def _gaussian(sums, noisy, keys, laws, columns, half, width, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    grid, std = tl.load(laws + width * lane), tl.load(laws + width * lane + 1)
    radius = tl.sqrt(-2.0 * std * std * tl.log(tl.abs(_signed(keys, lane, place))))
    angle = _signed(keys, lane, half + place) * 3.141592653589793
    one, two = place < half, (place < half) & (half + place < columns)
    start = lane * columns + place
    _put(radius * tl.cos(angle), sums, noisy, grid, start, one)
    _put(radius * tl.sin(angle), sums, noisy, grid, start + half, two)


@triton.jit
def _laplace(sums, noisy, keys, laws, columns, draws, width, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    grid, scale = tl.load(laws + width * lane), tl.load(laws + width * lane + 1)
    signed = _signed(keys, lane, place)
    size = -scale * tl.log(tl.abs(signed))
    noise = tl.where(signed < 0, -size, size)
    _put(noise, sums, noisy, grid, lane * columns + place, place < columns)


@triton.jit
def _staircase(sums, noisy, keys, laws, columns, draws, width, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    law = laws + width * lane
    grid, decay, period = tl.load(law), tl.load(law + 1), tl.load(law + 2)
    end, fallen, high = tl.load(law + 3), tl.load(law + 4), tl.load(law + 5)
    low, steep = tl.load(law + 6), tl.load(law + 7)
    signed = _signed(keys, lane, place)
    y = -tl.log(tl.abs(signed)) / decay
    whole = tl.floor(y)
    remaining = tl.exp(-decay * (y - whole))
    ahead = (remaining - end) / fallen
    part = tl.where(ahead > low, (1.0 - remaining) / fallen * high, 1.0 - ahead * steep)
    size = period * (whole + tl.minimum(tl.maximum(part, 0.0), 1.0))
    noise = tl.where(signed < 0, -size, size)
    _put(noise, sums, noisy, grid, lane * columns + place, place < columns)


@triton.jit
def _tabulated(sums, noisy, keys, laws, columns, draws, width, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    law = laws + width * lane
    grid, scale, last = tl.load(law), tl.load(law + 1), tl.load(law + 2)
    edge, rate = tl.load(law + 3), tl.load(law + 4)
    cells, step = law + 6, tl.load(law + 5).to(tl.int32)
    signed = _signed(keys, lane, place)
    tail = tl.abs(signed)
    cell = tl.zeros((BLOCK,), tl.int32)
    while step > 0:  # the last cell whose survival at its start is at least the tail
        above = tl.load(cells + 5 * (cell + step)) >= tail
        cell = tl.where(above, cell + step, cell)
        step = step // 2
    own = cells + 5 * cell
    mass = (tl.load(own) - tail) / tl.load(own + 4)
    # Inside the table a share of the cell, log(1 + slope mass) / slope; beyond it a logarithm, too.
    # The error of `whole` shows in the difference to 1 as it does in the logarithm.
    whole = 1.0 + tl.maximum(tl.load(own + 3) * mass, tl.zeros_like(mass) + (-1.0 + 1e-12))
    gap, outside = whole - 1.0, tail < last
    grown = tl.log(tl.where(outside, tl.minimum(tail * (1.0 / last), 1.0), whole))
    share = mass * tl.where(gap == 0, 1.0, grown / tl.where(gap == 0, 1.0, gap))
    inside = tl.load(own + 1) + tl.load(own + 2) * tl.minimum(tl.maximum(share, 0.0), 1.0)
    size = scale * tl.where(outside, edge - grown * (1.0 / rate), inside)
    noise = tl.where(signed < 0, -size, size)
    _put(noise, sums, noisy, grid, lane * columns + place, place < columns)


KINDS = {
    "gaussian": _gaussian,
    "laplace": _laplace,
    "staircase": _staircase,
    "tabulated": _tabulated,
}
"""Noise of independent numbers."""


def add_vectors(sums: Tensor, noisy: Tensor, keys: Tensor, laws: Tensor, dimension: int) -> None:
    """Write sums [L, n] with `staircase-l1` noise of whole vectors to `noisy`, on a grid.

    Of the uniform numbers of a lane the first n are directions, the next n the Laplace noise of one
    unit on top, and radii are tried with those behind.
    """
    _require_dense(keys, laws, sums, noisy)
    lanes, columns = sums.shape
    if not sums.numel():
        return
    block = min(_WORDS, triton.next_power_of_2(dimension))
    vectors, blocks = columns // dimension, triton.cdiv(dimension, block)
    parts = min(_PARTS, triton.next_power_of_2(blocks))
    sizes = laws.new_empty(lanes, vectors, blocks)
    factors = laws.new_empty(lanes, vectors)
    with checking():
        _added_sizes[(vectors * blocks, lanes)](keys, sizes, dimension, vectors, blocks, block)
        _radii_over_sizes[(vectors, lanes)](
            keys, laws, sizes, factors, columns, vectors, blocks, laws.shape[1], _TRIES, parts
        )
        _vectors[(triton.cdiv(columns, _WORDS), lanes)](
            sums, noisy, keys, laws, factors, columns, dimension, vectors, laws.shape[1], _WORDS
        )


@triton.jit
def _exponential(signed):
    """The size of a coordinate before it is divided by the sum of all of them; never zero."""
    return tl.maximum(-tl.log(tl.abs(signed)), 5.551115123125783e-17)  # 2^-54


@triton.jit
def _added_sizes(keys, sizes, dimension, vectors, blocks, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    vector = tl.program_id(0).to(tl.int64) // blocks
    block = tl.program_id(0).to(tl.int64) % blocks
    place = block * BLOCK + tl.arange(0, BLOCK)
    size = _exponential(_signed(keys, lane, vector * dimension + place))
    total = tl.sum(tl.where(place < dimension, size, 0.0), 0)
    tl.store(sizes + (lane * vectors + vector) * blocks + block, total)


@triton.jit
def _radii_over_sizes(
    keys, laws, sizes, factors, columns, vectors, blocks, width,
    TRIES: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """As `StaircaseL1.radii`, with normal numbers of Box and Muller; the first that is kept."""
    lane, vector = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    own = sizes + (lane * vectors + vector) * blocks
    law = laws + width * lane
    decay, period, split = tl.load(law + 1), tl.load(law + 2), tl.load(law + 3)
    shape, spread = tl.load(law + 4), tl.load(law + 5)
    total = tl.zeros((PARTS,), tl.float64)
    for start in range(0, blocks, PARTS):
        part = start + tl.arange(0, PARTS)
        total += tl.load(own + part, mask=part < blocks, other=0.0)
    tried, many = tl.arange(0, TRIES), vectors + 0 * lane
    first = vector + columns + columns
    radius = 0.0 * decay
    while radius <= 0:
        place = first + 3 * many * tried
        length = tl.sqrt(-2.0 * tl.log(tl.abs(_signed(keys, lane, place))))
        y = spread * length * tl.cos(_signed(keys, lane, place + many) * 3.141592653589793)
        possible = y > -1.0
        y = tl.where(possible, y, 0.0)
        periods = shape * (1.0 + y) * (1.0 + y) * (1.0 + y) / decay
        past = periods - split
        kept = shape * (3.0 * _beyond_square(y) - y * y * y)
        kept -= decay * (1.0 - (past - tl.floor(past)))
        coin = tl.log(tl.abs(_signed(keys, lane, place + 2 * many)))
        chosen = tl.min(tl.where(possible & (coin < kept), tried, TRIES), 0)
        radius = tl.sum(tl.where(tried == chosen, periods, 0.0), 0)
        first += 3 * many * TRIES
    tl.store(factors + lane * vectors + vector, period * radius / tl.sum(total, 0))


@triton.jit
def _beyond_square(y):
    """log(1 + y) - y + y^2 / 2. With s = y / (2 + y), log(1 + y) is 2 (s + s^3/3 + s^5/5 + ...):
    near zero all that is added up has one sign."""
    s = y / (2.0 + y)
    q = s * s
    rest = q * 0.043478260869565216 + 0.047619047619047616  # 1/23, 1/21
    rest = q * rest + 0.05263157894736842
    rest = q * rest + 0.058823529411764705
    rest = q * rest + 0.06666666666666667
    rest = q * rest + 0.07692307692307693
    rest = q * rest + 0.09090909090909091
    rest = q * rest + 0.1111111111111111
    rest = q * rest + 0.14285714285714285
    rest = q * rest + 0.2
    rest = q * rest + 0.3333333333333333
    near = s * (0.5 * y * y + 2.0 * q * rest)
    return tl.where(tl.abs(y) < 0.25, near, tl.log(1.0 + y) - y + 0.5 * y * y)


@triton.jit
def _vectors(
    sums, noisy, keys, laws, factors, columns, dimension, vectors, width, BLOCK: tl.constexpr
):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    factor = tl.load(factors + lane * vectors + place // dimension, mask=inside, other=0.0)
    signed = _signed(keys, lane, place)
    size = _exponential(signed) * factor
    blur = _signed(keys, lane, columns + place)
    on_top = -tl.log(tl.abs(blur))
    noise = tl.where(signed < 0, -size, size) + tl.where(blur < 0, -on_top, on_top)
    _put(noise, sums, noisy, tl.load(laws + width * lane), lane * columns + place, inside)
