"""Which operators a pass runs, and on how many numbers.

On a CPU some functions have two formulas: one for whole vectors of numbers, and one for what is
left at the end of a tensor. They differ in the last bit of a few percent of all numbers, too few to
be found by trying some. Then it matters whether a row lies at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_VECTORS = 32
"""Numbers that the widest CPUs take at once: two registers of 16."""
_SERIAL = 1 << 15
"""Up to so many numbers torch leaves an operator to one thread."""
_EXACT = """
    _reshape_alias _to_copy _unsafe_view abs add alias arange as_strided cat clamp clamp_max
    clamp_min clone constant_pad_nd contiguous copy detach diagonal div embedding
    embedding_dense_backward empty empty_like empty_strided eq expand expand_copy fill flip full
    full_like gather ge gt index index_put index_select le lift_fresh lt masked_fill
    max_pool2d_with_indices max_pool2d_with_indices_backward maximum minimum mul narrow ne neg
    new_empty new_empty_strided new_full new_ones new_zeros nll_loss_backward nll_loss_forward
    ones ones_like permute relu repeat reshape rsub scalar_tensor scatter select select_backward
    set slice slice_backward split split_with_sizes sqrt square squeeze stack sub sum_to_size t
    threshold_backward to transpose unbind unfold unsafe_view unsqueeze view where zero zeros
    zeros_like
""".split()  # noqa: SIM905
"""Operators that copy, compare, or round a number of one or two others as IEEE 754 says."""
_BY_ROWS = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _log_softmax _log_softmax_backward_data
    _softmax _softmax_backward_data addbmm addmm addmv avg_pool2d avg_pool2d_backward baddbmm
    bmm convolution convolution_backward dot einsum linalg_vector_norm linear matmul mean mm mv
    native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward
    sum
""".split()  # noqa: SIM905
"""Operators that add up. If they do so in another order many numbers differ: a few show it."""
_HARMLESS = frozenset((*_EXACT, *_BY_ROWS))


class Seen(NamedTuple):
    """What one operator gave."""

    operator: str
    shape: tuple[int, ...]
    is_dense: bool = True
    """Whether all tensors in it lie in memory without gaps."""
    is_float: bool = True
    """Whether it gave numbers that are rounded."""


class Operators(TorchDispatchMode):
    """Notes every operator that runs while it is active, and the shapes of what it gives.

    `look` is shown what is not exact: sums, and what operators give that are not known.
    """

    def __init__(self, look: Callable[[Tensor], None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Seen] = []
        self._look = look

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::").removesuffix("_")  # in place or not
        if name.startswith("pow") and isinstance(args[1], (int, float)) and args[1] == 2:
            name = "square"
        tensors = [t for t in tree_leaves((args, kwargs, given)) if isinstance(t, Tensor)]
        is_dense = all(t.is_contiguous() for t in tensors)
        for value in tree_leaves(given):
            if isinstance(value, Tensor):
                is_float = value.is_floating_point()
                self.seen.append(Seen(name, tuple(value.shape), is_dense, is_float))
                if self._look and is_float and name not in _EXACT:
                    self._look(value)
        return given


def in_whole_vectors(seen: Iterable[Seen], threads: int) -> bool:
    """Whether every operator with a second formula for the end of a tensor does without it."""
    return all(
        _is_whole(own, threads) for own in seen if own.is_float and own.operator not in _HARMLESS
    )


def _is_whole(seen: Seen, threads: int) -> bool:
    numbers = torch.Size(seen.shape).numel()
    tasks = min(threads, -(-numbers // _SERIAL)) or 1
    # What has gaps is walked row by row: no thread may begin within one.
    row = 1 if seen.is_dense or tasks == 1 else seen.shape[-1]
    return -(-numbers // tasks) % (_VECTORS * row) == 0
