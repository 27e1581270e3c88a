"""Which operators a pass runs, on tensors of which form.

Two passes of the same width do the same arithmetic if they run the same operators on the same
forms. What an operator makes of a form is judged in `places.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

_EXACT = """
    _reshape_alias _to_copy _unsafe_view abs add alias amax amin arange as_strided cat ceil clamp
    clamp_max clamp_min clone constant_pad_nd contiguous copy detach diagonal div embedding
    embedding_dense_backward empty empty_like empty_strided eq expand expand_copy fill flip floor
    full full_like gather ge gt index index_put index_select le lift_fresh lt masked_fill
    max_pool2d_with_indices max_pool2d_with_indices_backward maximum minimum mul narrow ne neg
    new_empty new_empty_strided new_full new_ones new_zeros nll_loss_backward nll_loss_forward
    ones ones_like permute relu repeat reshape roll round rsub scalar_tensor scatter select
    select_backward set sign slice slice_backward sort split split_with_sizes sqrt square squeeze
    stack sub sum_to_size t threshold_backward to topk transpose tril triu trunc unbind unfold
    unsafe_split unsafe_view unsqueeze view where zero zeros zeros_like
""".split()  # noqa: SIM905
_DRAWS = """
    cauchy exponential geometric log_normal normal rand rand_like randn randn_like uniform
""".split()  # noqa: SIM905
EXACT = frozenset([*_EXACT, *_DRAWS, "bernoulli", "native_dropout"])
"""Operators that copy, compare, or round a number of one or two others as IEEE 754 says, where they
are real numbers; and those that draw, for every record alike."""
_PRODUCTS = """
    addbmm addmm addmv baddbmm bmm convolution convolution_backward dot einsum linear matmul mm mv
""".split()  # noqa: SIM905
PRODUCTS = frozenset(_PRODUCTS)
"""Operators that multiply matrices. If they add up in another order many numbers differ: a few,
that are tried, show it."""
_SUMS = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _log_softmax _log_softmax_backward_data
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _softmax _softmax_backward_data avg_pool2d
    avg_pool2d_backward index_put linalg_vector_norm mean native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward std sum var var_mean
""".split()  # noqa: SIM905
SUMS = frozenset(_SUMS)
"""Operators that add up numbers of one tensor along some of its axes."""
MIXED = frozenset({"glu", "glu_backward", "logsumexp"})
"""Operators that compute functions of numbers and change the shape, record by record."""
ACROSS = " with parted records"
"""Behind the name of an operator for which several threads may part a record."""
OUTSIDE = "outside of torch"
"""In place of an operator: numbers were handed to code that torch knows nothing about."""

_CONSTANTS = {"bernoulli": 1.0, **dict.fromkeys(_DRAWS, 0.5)}
"""What operators give in the place of random numbers where draws are left out."""
_LARGE_IMAGE = 1 << 10
"""Numbers of a channel from which on threads may part a record of a group norm."""

_HANDS_OUT = (
    (Tensor, "numpy tolist __array__ __dlpack__ data_ptr untyped_storage apply_ map_ __repr__"),
    (Tensor, "tensor_split new_tensor"),
    (torch, "tensor_split tensor as_tensor"),
)
"""Where torch lets numbers out, or reads them, without an operator that says so."""
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


Look = Callable[[str, Tensor, Callable[[Callable[[Tensor], Tensor]], list[Tensor]]], None]


class _Here(threading.local):
    """What every thread has of its own."""

    checks = False


_here = _Here()


@contextmanager
def checking() -> Iterator[None]:
    """Numbers are read to refuse them or not: nothing else that is computed depends on them."""
    _here.checks = True
    try:
        yield
    finally:
        _here.checks = False


class Form(NamedTuple):
    """What a tensor is, apart from its numbers."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_real: bool = True
    """Whether it holds floating-point numbers."""
    is_complex: bool = False

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        """The form of a tensor. Where an axis has one entry, its stride means nothing."""
        if tensor.layout != torch.strided or tensor.is_nested:  # nothing is known of these
            return cls((), (), False, True)
        shape = tuple(tensor.shape)
        strides = tuple(
            own if size > 1 else 0 for own, size in zip(tensor.stride(), shape, strict=True)
        )
        return cls(shape, strides, tensor.is_floating_point(), tensor.is_complex())


class Seen(NamedTuple):
    """One operator that ran."""

    operator: str
    operands: tuple[Form, ...]
    results: tuple[Form, ...]
    reads: bool = False
    """Whether numbers decide on the form of a result, or leave the tensors: whoever knows them may
    compute something else."""


class Operators(TorchDispatchMode):
    """Notes every operator that runs while it is active.

    `look` is shown what is not exact: sums, and what operators give that are not known. With it
    comes a function that makes the operator compute other operands: those that it is handed, made
    of the tensors. Without `draws` there are constants in the place of random numbers, so that
    equal records have equal answers.
    """

    def __init__(self, look: Look | None = None, *, draws: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Seen] = []
        self._look, self._draws = look, draws

    def __enter__(self) -> Operators:
        _handed_out.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _handed_out.__exit__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        operands = tuple(Form.of(t) for t in _tensors((args, kwargs)))  # as they were before
        given = func(*args, **kwargs)
        if not self._draws and torch.Tag.nondeterministic_seeded in func.tags:
            _fill_with_constants(func, args, given)
        results, name = _tensors(given), _name(func, args, kwargs)
        forms = tuple(Form.of(result) for result in results)
        self.seen.append(Seen(name, operands, forms, _reads(func, args)))
        if self._look and name not in EXACT:
            for result in results:
                if result.is_floating_point():
                    self._look(name, result, partial(_recomputed, func, args, kwargs))
        return given


def _recomputed(
    func: Any, args: tuple[Any, ...], kwargs: Any, other: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """What an operator makes of other numbers in tensors of the same form."""
    args, kwargs = tree_map_only(Tensor, other, (args, kwargs))
    return _tensors(func(*args, **kwargs))


def _fill_with_constants(func: Any, args: tuple[Any, ...], given: Any) -> None:
    """Overwrite what a random operator gave; of operators that are not known nothing is changed."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name == "native_dropout":
        result, mask = given
        result.copy_(args[0] / (1 - args[1]))
        mask.fill_(True)
    elif name in _CONSTANTS:
        given.fill_(_CONSTANTS[name])


class _HandedOut:
    """Notes where numbers leave tensors by other means than operators, in backward passes too.

    Functions of torch are replaced as long as some thread watches a pass: a mode of torch for
    functions is not active in what runs inside another function. A call is noted by the `Operators`
    that are active in its own thread, and by nobody else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched = 0
        self._restore = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._watched == 0:
                for owner, names in _HANDS_OUT:
                    for name in names.split():
                        self._restore.callback(_replace(owner, name))
            self._watched += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._watched -= 1
            if self._watched == 0:
                self._restore.close()


_handed_out = _HandedOut()


def _replace(owner: Any, name: str) -> Callable[[], None]:
    """Replace a function by one that notes its calls; returns what takes that back."""
    is_own, original = name in vars(owner), getattr(owner, name)

    @wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:
        active = [m for m in _get_current_dispatch_mode_stack() if isinstance(m, Operators)]
        if active and not _here.checks and (tensors := _read_by(name, args, kwargs)):
            form = Form.of(tensors[0])
            for mode in active:
                mode.seen.append(Seen(OUTSIDE, (form,), (form,), True))
        return original(*args, **kwargs)

    setattr(owner, name, noted)
    return partial(setattr, owner, name, original) if is_own else partial(delattr, owner, name)


def _read_by(name: str, args: tuple[Any, ...], kwargs: Any) -> list[Tensor]:
    """The tensors whose numbers are read."""
    if name in ("tensor", "as_tensor", "new_tensor"):  # a list of tensors, not one as it is
        data = args[name == "new_tensor" : 1 + (name == "new_tensor")]
        return [] if data and isinstance(data[0], Tensor) else _tensors((data, kwargs))
    if name == "tensor_split":
        return _tensors((args[1:], kwargs))
    return _tensors(args)


def _tensors(nested: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)]


def _name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The operator's name, in place or not; another one where an option changes its arithmetic."""
    name: str = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name == "index_put" and (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
        return name + ACROSS
    if name.startswith("native_group_norm") and _may_be_parted(args[:2]):
        return name + ACROSS
    if name == "pow" and isinstance(args[1], (int, float)) and args[1] == 2:
        return "square"
    alpha = args[2] if name in ("add", "sub", "rsub") and len(args) > 2 else kwargs.get("alpha", 1)
    if name in ("_softmax", "_softmax_backward_data"):
        axis = args[1] if name == "_softmax" else args[2]
        if axis % max(1, args[0].dim()) != args[0].dim() - 1:
            return name + ACROSS
    if alpha != 1 or kwargs.get("rounding_mode") is not None:
        return f"{name} with options"
    return name


def _may_be_parted(args: tuple[Any, ...]) -> bool:
    """Whether the channels of large images lie side by side, pixel by pixel."""
    images = [t for t in _tensors(args) if t.dim() > 2]
    return any(not t.is_contiguous() and t.shape[2:].numel() >= _LARGE_IMAGE for t in images)


def _reads(func: Any, args: tuple[Any, ...]) -> bool:
    if _here.checks:
        return False
    if func is torch.ops.aten.index.Tensor:  # places say how many there are, a mask does not
        return any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))
    return not _READS.isdisjoint(func.tags)
