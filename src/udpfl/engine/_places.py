"""Whether an operator may round a record by its place in a pass.

On a CPU many operators have two formulas: one for whole vectors of numbers, and one for what is
left at the end of a tensor, of a row, or of what a thread was given. They differ in the last bit of
a few percent of all numbers, too few to be found by trying some. Then it matters whether a record
lies at the end. So an operator that sees records is allowed only if it is known that it does not
matter:

- it copies, compares, or computes one IEEE operation on real numbers (`EXACT`);
- it multiplies matrices (`PRODUCTS`): what these do shows in the numbers that are tried;
- it adds up within a record (`SUMS`): in the memory of all that it reads and gives, one record
  follows the other, so that the ends are those of every record;
- it does both within a record (`MIXED`): besides, there are no gaps, whole vectors for every
  thread, and no two threads share a record;
- anything else: all that it reads and gives has one shape, beside single numbers, and either lies
  without gaps, in one order, in whole vectors for every thread, or is walked row by row, with rows
  within a record that no two threads share.

Which axes depend on the records is seen from the shapes at several widths. What has the same shapes
at all of them sees no records: constants, positions, weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from udpfl.engine._operators import ACROSS, EXACT, MIXED, OUTSIDE, PRODUCTS, SUMS, Form, Seen

_VECTORS = 32
"""Numbers that the widest CPUs take at once: two registers of 16."""
_SERIAL = 1 << 12
"""Up to so many numbers torch leaves an operator to one thread. Most operators get a second one
beyond 2^15 numbers, some earlier."""


class _Part(NamedTuple):
    """A tensor of an operator, and which of its axes have another size at other widths."""

    form: Form
    varies: frozenset[int]

    @property
    def numbers(self) -> int:
        return prod(self.form.shape)

    @property
    def axes(self) -> list[int]:
        """The axes with several entries, from the outermost in memory to the innermost."""
        shape, strides = self.form.shape, self.form.strides
        return sorted((i for i, size in enumerate(shape) if size > 1), key=lambda i: -strides[i])

    @property
    def layout(self) -> list[tuple[int, int]]:
        """Where its numbers lie in memory: each such axis and its stride."""
        return [(i, self.form.strides[i]) for i in self.axes]

    @property
    def is_even(self) -> bool:
        """Whether its numbers lie in memory at one distance from each other, each by itself."""
        pairs = pairwise(self.axes)
        shape, strides = self.form.shape, self.form.strides
        return all(strides[outer] == shape[inner] * strides[inner] for outer, inner in pairs)

    @property
    def is_dense(self) -> bool:
        """Whether there are no gaps between its numbers."""
        return self.is_even and all(stride == 1 for _, stride in self.layout[-1:])

    def is_by_record(self, lanes: int) -> bool:
        """Whether one record follows the other in memory, after an axis of this many lanes."""
        axes = self.axes
        if lanes > 1 and axes and axes[0] not in self.varies and self.form.shape[axes[0]] == lanes:
            axes = axes[1:]
        repeats = any(stride == 0 for _, stride in self.layout)
        return len(self.varies) == 1 and axes[:1] == list(self.varies) and not repeats


def places_do_not_show(
    seen: Sequence[Seen],
    others: Sequence[Sequence[Seen]],
    threads: int,
    lanes: int = 1,
    widths: Sequence[int] = (),
) -> bool:
    """Whether no operator of a pass rounds a record by its place.

    `others` are what ran in passes of other widths; `widths` are this one and theirs. What runs as
    often in all of them sees no records, and what runs once more for every record, as torch.func
    repeats an operator, sees one alone. If the rest has other operators in all of them nothing is
    known: then every axis may be one of records. `lanes` is the size of an axis of lanes before
    that of the records; 1 where the two are one axis.
    """
    own, *rest = ([one for one in ran if not _is_exact(one)] for ran in (seen, *others))
    counts = [Counter(ran) for ran in (own, *rest)]
    common = {one for one in counts[0] if rest and _sees_one_or_none(one, counts, widths)}
    own, *rest = ([one for one in ran if one not in common] for ran in (own, *rest))
    names = [one.operator for one in own]
    telling = [ran for ran in rest if [one.operator for one in ran] == names]
    if not telling:
        own = [one for one in seen if not _is_exact(one)]
    return all(
        _is_harmless(one, [ran[i] for ran in telling], threads, lanes) for i, one in enumerate(own)
    )


def _sees_one_or_none(own: Seen, counts: Sequence[Counter[Seen]], widths: Sequence[int]) -> bool:
    """Whether an operator runs as often at every width, or as often as there are records."""
    times = [count[own] for count in counts]
    if len(set(times)) == 1:
        return True
    return bool(widths) and all(
        n * widths[0] == times[0] * w for n, w in zip(times, widths, strict=True)
    )


def _is_exact(own: Seen) -> bool:
    is_complex = any(form.is_complex for form in (*own.operands, *own.results))
    return own.operator in EXACT and not is_complex


def _is_harmless(own: Seen, elsewhere: Sequence[Seen], threads: int, lanes: int) -> bool:
    operands = _parts(own.operands, [other.operands for other in elsewhere])
    results = _parts(own.results, [other.results for other in elsewhere])
    if not any(part.varies for part in (*operands, *results)):  # but it is not in all passes
        operands, results = _parts(own.operands, []), _parts(own.results, [])
    if own.operator == OUTSIDE:
        return False
    rounded = [part for part in results if part.form.is_real or part.form.is_complex]
    parts = [part for part in operands if part.form.is_real or part.form.is_complex] + rounded
    parts = [part for part in parts if part.numbers]
    if any(part.form.is_complex for part in parts):
        return False
    if not rounded or own.operator in PRODUCTS:
        return True
    if "::" in own.operator:  # not one of torch's own
        return False
    if own.operator.endswith(ACROSS) and threads > 1:
        return False
    if own.operator.removesuffix(ACROSS) in SUMS:
        # The sum of all numbers is nobody's own.
        is_whole = all(part.varies or part.numbers == 1 for part in rounded)
        return is_whole and all(part.is_by_record(lanes) for part in parts if part.varies)
    several = [part for part in parts if part.varies or part.numbers > 1]
    if own.operator in MIXED:
        return all(
            part.is_dense
            and _is_whole(part.numbers, threads)
            and _numbers_of_a_record(part, threads, lanes)
            for part in several
        )
    if not all(part.varies and part.form.shape == several[0].form.shape for part in several):
        return False  # what is repeated along an axis is not walked like the rest
    if all(part.is_dense and part.layout == several[0].layout for part in several):
        return _is_whole(several[0].numbers, threads)
    # torch walks tensors of one shape as if they had as few axes as they can do with. It can do
    # with one if in all of them the numbers lie evenly, in the same order: then only the very last
    # ones are an end. Else rows within records are walked, and each has an end of its own.
    if all(part.is_even and part.axes == several[0].axes for part in several):
        return False
    return all(_numbers_of_a_record(part, threads, lanes) > 1 for part in several)


def _numbers_of_a_record(part: _Part, threads: int, lanes: int) -> int:
    """How many numbers of a record lie side by side; 0 where others do, or where threads part them.

    Threads get equal shares, whatever lies in them.
    """
    if not part.is_by_record(lanes):
        return 0
    (axis,) = part.varies
    record = prod(part.form.shape[i] for i in part.axes[part.axes.index(axis) + 1 :])
    parted = [share for share in _shares(part.numbers, threads)[1:] if share % record]
    return 0 if parted else record


def _parts(forms: Sequence[Form], elsewhere: Sequence[Sequence[Form]]) -> list[_Part]:
    """The tensors of one operator, beside what they are at other widths."""
    return [
        _Part(form, _varying(form, [own[i] for own in elsewhere if len(own) == len(forms)]))
        for i, form in enumerate(forms)
    ]


def _varying(form: Form, elsewhere: Sequence[Form]) -> frozenset[int]:
    """The axes that have another size at other widths; all of them where nothing is known."""
    axes = range(len(form.shape))
    alike = [other.shape for other in elsewhere if len(other.shape) == len(form.shape)]
    if not elsewhere or len(alike) < len(elsewhere):
        return frozenset(axes)
    return frozenset(i for i in axes if any(shape[i] != form.shape[i] for shape in alike))


def _shares(numbers: int, threads: int) -> list[int]:
    """How many numbers each thread may be given: all to one, or equal shares to several."""
    return [-(-numbers // n) for n in range(1, 1 + (threads if numbers > _SERIAL else 1))]


def _is_whole(numbers: int, threads: int) -> bool:
    """Whether every thread is given whole vectors, however many threads there are."""
    return all(share % _VECTORS == 0 for share in _shares(numbers, threads))
