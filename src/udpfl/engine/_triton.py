"""Kernels for CUDA: in one pass over memory what takes several by torch's own operators.

Nothing is read from the device, so a pass that is made of these can be a CUDA graph. Every number
of a record is computed from that record alone, by the same instructions wherever it lies.
"""

from __future__ import annotations

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
