"""Kernels for CUDA: in one pass over memory what takes several by torch's own operators.

Nothing is read from the device, so a pass that is made of these can be a CUDA graph. Every number
of a record is computed from that record alone, by the same instructions wherever it lies.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from udpfl.engine._operators import checking
from udpfl.engine._windows import Window

_ROW, _TILE, _WORDS = 1024, 4096, 1024
"""Numbers that a program takes: of a row, of a matrix, and of the words of one key."""


def _require_dense(*tensors: Tensor) -> None:
    """Kernels that are told no strides read what lies side by side, whoever it belongs to."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"a kernel needs a contiguous tensor, got strides {tensor.stride()}")


def powers_of_rows(rows: Tensor, p: int) -> Tensor:
    """Sum of |x|^p of every row [..., n] of a contiguous tensor, in double [...]."""
    _require_dense(rows)
    size = rows.new_empty(rows.shape[:-1], dtype=torch.float64)
    if size.numel():
        with checking():
            _powers_of_rows[(size.numel(),)](rows, size, rows.shape[-1], p, _ROW)
    return size


@triton.jit
def _powers_of_rows(rows, size, width, P: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, width, BLOCK):
        place = start + tl.arange(0, BLOCK)
        x = tl.load(rows + row * width + place, mask=place < width, other=0.0).to(tl.float64)
        total += tl.abs(x) if P == 1 else x * x
    tl.store(size + row, tl.sum(total, 0))


def weighted_rows(factors: Tensor, rows: Tensor, total: Tensor) -> None:
    """Write the sum over samples of factors [L, B] * rows [L, B, n] to a total [L, n], in the
    precision of the total. A row whose factor is zero counts for nothing, whatever it holds."""
    _require_dense(factors, rows, total[0])
    lanes, samples, width = rows.shape
    block = min(256, triton.next_power_of_2(width))
    with checking():
        _weighted_rows[(triton.cdiv(width, block), lanes)](
            factors, rows, total, samples, width, total.stride(0), block
        )


@triton.jit
def _weighted_rows(factors, rows, total, samples, width, lane_stride, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    kind = total.dtype.element_ty
    own = tl.zeros((BLOCK,), kind)
    for sample in range(samples):
        factor = tl.load(factors + lane * samples + sample)
        x = tl.load(rows + (lane * samples + sample) * width + place, mask=inside, other=0.0)
        own += factor * tl.where(factor != 0, x.to(kind), 0.0)
    tl.store(total + lane * lane_stride + place, own, mask=inside)


def kept_rows(rows: Tensor, factors: Tensor, *, scaled: bool) -> Tensor:
    """Rows [S, n] in the precision of the factors [S]: zeros where a factor is zero, whatever the
    row holds; the others as they are, or times their factors."""
    _require_dense(rows, factors)
    kept = torch.empty(rows.shape, dtype=factors.dtype, device=rows.device)
    count, width = rows.shape
    if kept.numel():
        block = min(_ROW, triton.next_power_of_2(width))
        with checking():
            _kept_rows[(count, triton.cdiv(width, block))](
                rows, factors, kept, width, scaled, block
            )
    return kept


@triton.jit
def _kept_rows(rows, factors, kept, width, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    factor = tl.load(factors + row + 0 * place)
    here = inside & (factor != 0)
    x = tl.load(rows + row * width + place, mask=here, other=0.0).to(kept.dtype.element_ty)
    if SCALED:
        x = x * factor
    tl.store(kept + row * width + place, tl.where(here, x, 0.0), mask=inside)


def patches(image: Tensor, window: Window, groups: int = 1) -> Tensor:
    """Images [N, C, H, W] under the window [N, groups, positions, high * wide * C / groups]."""
    samples, channels = image.shape[:2]
    own, positions = channels // groups, window.rows * window.columns
    width = window.kernel[0] * window.kernel[1] * own
    cut = image.new_empty(samples, groups, positions, width)
    tall, broad = _tile(width)
    count = samples * groups * positions
    if cut.numel():
        with checking():
            _patches[(triton.cdiv(count, tall), triton.cdiv(width, broad))](
                image, cut, count, width, own, groups, positions, window.columns,
                *window.image, *image.stride(), *window.stride, *window.padding, *window.dilation,
                window.kernel[1], tall, broad,
            )  # fmt: skip
    return cut


@triton.jit
def _patches(
    image, cut, count, width, own, groups, positions, columns,
    height, wide_image, s_n, s_c, s_y, s_x, down, right, top, left, dy, dx,
    WIDE: tl.constexpr, TALL: tl.constexpr, BROAD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * BROAD + tl.arange(0, BROAD)
    position = (row % positions).to(tl.int32)
    block = row // positions
    sample, group = block // groups, (block % groups).to(tl.int32)
    y0 = position // columns * down - top
    x0 = position % columns * right - left
    channel = column % own
    ky, kx = column // own // WIDE * dy, column // own % WIDE * dx
    start = sample * s_n + (group * own).to(tl.int64) * s_c
    y, x = y0[:, None] + ky[None, :], x0[:, None] + kx[None, :]
    inside = (row < count)[:, None] & (column < width)[None, :]
    seen = inside & (y >= 0) & (y < height) & (x >= 0) & (x < wide_image)
    place = start[:, None] + y * s_y + x * s_x + (channel * s_c)[None, :]
    found = tl.load(image + place, mask=seen, other=0.0)
    tl.store(cut + row[:, None] * width + column[None, :], found, mask=inside)


def folded(cut: Tensor, window: Window, channels: int) -> Tensor:
    """The reverse of `patches`: [N, positions, high * wide * C], added up where they came from, as
    images [N, C, H, W] whose channels are last in memory."""
    _require_dense(cut)
    samples = cut.shape[0]
    image = cut.new_empty(samples, *window.image, channels)
    broad = min(64, triton.next_power_of_2(channels))
    tall = _TILE // 4 // broad
    count = samples * window.image[0] * window.image[1]
    if image.numel():
        with checking():
            _folded[(triton.cdiv(count, tall), triton.cdiv(channels, broad))](
                cut, image, count, channels, *window.image, window.rows,
                window.columns, *window.stride, *window.padding, *window.dilation,
                *window.kernel, tall, broad,
            )  # fmt: skip
    return image.permute(0, 3, 1, 2)


@triton.jit
def _folded(
    cut, image, count, channels, height, width, rows, columns, down, right, top, left, dy, dx,
    HIGH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, BROAD: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    channel = tl.program_id(1) * BROAD + tl.arange(0, BROAD)
    inside = (pixel < count)[:, None] & (channel < channels)[None, :]
    sample = pixel // (height * width)
    within = (pixel % (height * width)).to(tl.int32)
    y, x = within // width, within % width
    total = tl.zeros((TALL, BROAD), image.dtype.element_ty)
    for i in tl.static_range(HIGH):
        for j in tl.static_range(WIDE):
            ty, tx = y + top - i * dy, x + left - j * dx
            row, column = ty // down, tx // right
            there = (ty >= 0) & (tx >= 0) & (ty % down == 0) & (tx % right == 0)
            there = there & (row < rows) & (column < columns)
            place = ((sample * rows + row) * columns + column) * (HIGH * WIDE) + i * WIDE + j
            found = tl.load(
                cut + (place * channels)[:, None] + channel[None, :],
                mask=inside & there[:, None],
                other=0.0,
            )
            total += found
    tl.store(image + (pixel * channels)[:, None] + channel[None, :], total, mask=inside)


def pooled(image: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """The largest number under the window [N, C, rows, columns], and which one it was.

    As torch has it: of equal numbers the first, and what is not a number wins.
    """
    samples, channels = image.shape[:2]
    size = (samples, window.rows, window.columns, channels)
    largest, which = image.new_empty(size), image.new_empty(size, dtype=torch.uint8)
    broad = min(64, triton.next_power_of_2(channels))
    tall = _TILE // 4 // broad
    count = samples * window.rows * window.columns
    if largest.numel():
        with checking():
            _pooled[(triton.cdiv(count, tall), triton.cdiv(channels, broad))](
                image, largest, which, count, channels, *window.image,
                window.rows, window.columns, *image.stride(), *window.stride, *window.padding,
                *window.dilation,
                *window.kernel, tall, broad,
            )  # fmt: skip
    return largest.permute(0, 3, 1, 2), which


@triton.jit
def _pooled(
    image, largest, which, count, channels, height, width, rows, columns,
    s_n, s_c, s_y, s_x, down, right, top, left, dy, dx,
    HIGH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, BROAD: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    channel = tl.program_id(1) * BROAD + tl.arange(0, BROAD)
    inside = (place < count)[:, None] & (channel < channels)[None, :]
    sample = place // (rows * columns)
    within = (place % (rows * columns)).to(tl.int32)
    y0, x0 = within // columns * down - top, within % columns * right - left
    best = tl.full((TALL, BROAD), float("-inf"), image.dtype.element_ty)
    chosen = tl.zeros((TALL, BROAD), tl.int32)
    first = tl.full((TALL, BROAD), True, tl.int1)
    for i in tl.static_range(HIGH):
        for j in tl.static_range(WIDE):
            y, x = y0 + i * dy, x0 + j * dx
            there = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            at = (sample * s_n + y * s_y + x * s_x)[:, None] + (channel * s_c)[None, :]
            found = tl.load(image + at, mask=inside & there[:, None], other=float("-inf"))
            better = there[:, None] & (first | (found > best) | (found != found))
            best = tl.where(better, found, best)
            chosen = tl.where(better, i * WIDE + j, chosen)
            first = first & ~there[:, None]
    out = (place * channels)[:, None] + channel[None, :]
    tl.store(largest + out, best, mask=inside)
    tl.store(which + out, chosen.to(tl.uint8), mask=inside)


def unpooled(back: Tensor, which: Tensor, window: Window) -> Tensor:
    """The gradient of the input of `pooled` [N, C, H, W] from that of what it gave."""
    _require_dense(which)
    samples, channels = back.shape[:2]
    image = back.new_empty(samples, *window.image, channels)
    broad = min(64, triton.next_power_of_2(channels))
    tall = _TILE // 4 // broad
    count = samples * window.image[0] * window.image[1]
    if image.numel():
        with checking():
            _unpooled[(triton.cdiv(count, tall), triton.cdiv(channels, broad))](
                back, which, image, count, channels, *window.image,
                window.rows, window.columns, *back.stride(), *window.stride, *window.padding,
                *window.dilation,
                *window.kernel, tall, broad,
            )  # fmt: skip
    return image.permute(0, 3, 1, 2)


@triton.jit
def _unpooled(
    back, which, image, count, channels, height, width, rows, columns,
    s_n, s_c, s_y, s_x, down, right, top, left, dy, dx,
    HIGH: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, BROAD: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    channel = tl.program_id(1) * BROAD + tl.arange(0, BROAD)
    inside = (pixel < count)[:, None] & (channel < channels)[None, :]
    sample = pixel // (height * width)
    within = (pixel % (height * width)).to(tl.int32)
    y, x = within // width, within % width
    total = tl.zeros((TALL, BROAD), image.dtype.element_ty)
    for i in tl.static_range(HIGH):
        for j in tl.static_range(WIDE):
            ty, tx = y + top - i * dy, x + left - j * dx
            row, column = ty // down, tx // right
            there = (ty >= 0) & (tx >= 0) & (ty % down == 0) & (tx % right == 0)
            there = there & (row < rows) & (column < columns)
            seen = inside & there[:, None]
            at = ((sample * rows + row) * columns + column) * channels
            own = tl.load(which + at[:, None] + channel[None, :], mask=seen, other=255)
            taken = seen & (own == i * WIDE + j)
            given = (sample * s_n + row * s_y + column * s_x)[:, None] + (channel * s_c)[None, :]
            total += tl.load(back + given, mask=taken, other=0.0)
    tl.store(image + (pixel * channels)[:, None] + channel[None, :], total, mask=inside)


def fill_with_words(
    flat: Tensor, starts: Tensor, sizes: Tensor, keys: Tensor, longest: int, first: int = 0
) -> None:
    """Fill parts of an int64 vector with the words of their keys [n, 4], from word `first` on.

    Philox 4x32 with ten rounds: a key has 64 bits for its key and 64 for the upper half of its
    counter, whose lower half counts pairs of words. `first` is even.
    """
    _require_dense(flat, starts, sizes, keys)
    if longest:
        with checking():
            _fill_with_words[(len(sizes), triton.cdiv(longest, 2 * _WORDS))](
                flat, starts, sizes, keys, first // 2, _WORDS
            )


@triton.jit
def _fill_with_words(flat, starts, sizes, keys, first, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    pair = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    start, size = tl.load(starts + part), tl.load(sizes + part)
    one, two = _words(keys, part, pair + first)
    tl.store(flat + start + 2 * pair, one, mask=2 * pair < size)
    tl.store(flat + start + 2 * pair + 1, two, mask=2 * pair + 1 < size)


@triton.jit
def _words(keys, part, pair):
    """Two words of a key for every pair that is counted."""
    k0, k1 = tl.load(keys + 4 * part), tl.load(keys + 4 * part + 1)
    low, high = _parted(pair.to(tl.uint64))
    c2, c3 = _parted(k1.to(tl.uint64))
    zero = tl.zeros_like(low)
    a, b, c, d = tl.philox(k0, low, high, c2 + zero, c3 + zero)
    one = (b.to(tl.uint64) << 32) | a.to(tl.uint64)
    two = (d.to(tl.uint64) << 32) | c.to(tl.uint64)
    return one.to(tl.int64, bitcast=True), two.to(tl.int64, bitcast=True)


@triton.jit
def _parted(word):
    return (word & 0xFFFFFFFF).to(tl.uint32), (word >> 32).to(tl.uint32)


def _tile(width: int) -> tuple[int, int]:
    """Rows and columns that a program takes: broad, but not beyond the end by much."""
    broad = min(256, triton.next_power_of_2(width))
    while broad > 32 and -width % broad > width // 8:
        broad //= 2
    return max(1, _TILE // broad), broad


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


def add_rounded(noise: Tensor, sums: Tensor, noisy: Tensor, scales: Tensor) -> None:
    """Write noise [L, n], in units of a lane's grid, plus the sums to `noisy`, on that grid.

    `scales` [L, 2] has the grid in its second column.
    """
    _require_dense(noise, scales, sums, noisy)
    lanes, columns = sums.shape
    if noise.numel():
        with checking():
            _add_rounded[(triton.cdiv(columns, _WORDS), lanes)](
                noise, sums, noisy, scales, columns, _WORDS
            )


@triton.jit
def _add_rounded(noise, sums, noisy, scales, columns, BLOCK: tl.constexpr):
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    grid = tl.load(scales + 2 * lane + 1)
    drawn = tl.load(noise + lane * columns + place, mask=inside)
    total = tl.load(sums + lane * columns + place, mask=inside).to(tl.float64)
    tl.store(noisy + lane * columns + place, _on_grid(drawn, total, grid), mask=inside)


@triton.jit
def _on_grid(noise, total, grid):
    """Noise in units of the grid plus a sum, rounded to a whole number of units."""
    return tl.floor(noise + total / grid + 0.5) * grid


def add_gaussian(sums: Tensor, noisy: Tensor, keys: Tensor, scales: Tensor) -> None:
    """Write sums [L, n] with normal noise to `noisy`, on a grid.

    `scales` [L, 2] has each lane's deviation in units of its grid, and the grid. Numbers j and
    half + j of a lane are a pair of Box and Muller 1958.
    """
    _add_noise(_gaussian, sums, noisy, keys, scales, -(-sums.shape[1] // 2))


def add_laplace(sums: Tensor, noisy: Tensor, keys: Tensor, scales: Tensor) -> None:
    """The same with Laplace noise of a scale in units of the grid."""
    _add_noise(_laplace, sums, noisy, keys, scales, sums.shape[1])


def _add_noise(
    kernel: Any, sums: Tensor, noisy: Tensor, keys: Tensor, scales: Tensor, draws: int
) -> None:
    _require_dense(keys, scales, sums, noisy)
    lanes, columns = sums.shape
    if sums.numel():
        with checking():
            kernel[(triton.cdiv(draws, _WORDS), lanes)](
                sums, noisy, keys, scales, columns, draws, _WORDS
            )


@triton.jit
def _gaussian(
    sums, noisy, keys, scales, columns, half, BLOCK: tl.constexpr
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    std, grid = tl.load(scales + 2 * lane), tl.load(scales + 2 * lane + 1)
    radius = tl.sqrt(-2.0 * std * std * tl.log(tl.abs(_signed(keys, lane, place))))
    angle = _signed(keys, lane, half + place) * 3.141592653589793
    one, two = place < half, (place < half) & (half + place < columns)
    first = tl.load(sums + lane * columns + place, mask=one, other=0.0).to(tl.float64)
    second = tl.load(sums + lane * columns + half + place, mask=two, other=0.0).to(tl.float64)
    out = noisy + lane * columns + place
    tl.store(out, _on_grid(radius * tl.cos(angle), first, grid), mask=one)
    tl.store(out + half, _on_grid(radius * tl.sin(angle), second, grid), mask=two)


@triton.jit
def _laplace(
    sums, noisy, keys, scales, columns, draws, BLOCK: tl.constexpr
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    scale, grid = tl.load(scales + 2 * lane), tl.load(scales + 2 * lane + 1)
    signed = _signed(keys, lane, place)
    size = -scale * tl.log(tl.abs(signed))
    noise = tl.where(signed < 0, -size, size)
    total = tl.load(sums + lane * columns + place, mask=inside, other=0.0).to(tl.float64)
    tl.store(noisy + lane * columns + place, _on_grid(noise, total, grid), mask=inside)
