"""One tensor of all messages, without a copy where they already lie in one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from udpfl.algorithms.message import ClientMessage


def rows_of(messages: Sequence[ClientMessage], name: str) -> Tensor:
    """One tensor of all messages, to be read: it may be the memory of the messages themselves.

    In a simulation the messages of a round are rows of one tensor, and another copy of a thousand
    models is a matter of gigabytes. `stacked` makes one that may be changed.

    Args:
        messages: At least one.
        name: Which of their tensors.

    Returns:
        [messages, ...], in the order of the messages.

    Raises:
        KeyError: A message has no tensor of this name.

    Example:
        >>> import torch
        >>> from udpfl import ClientMessage
        >>> from udpfl.algorithms.rows import rows_of
        >>> both = torch.arange(4.0).view(2, 2)
        >>> rows_of([ClientMessage(name, 1, {"w": w}) for name, w in zip("ab", both)], "w")
        tensor([[0., 1.],
                [2., 3.]])
    """
    tensors = [message.tensors[name] for message in messages]
    first, size = tensors[0], tensors[0].numel()
    storage = first.untyped_storage().data_ptr()
    are_rows = all(
        own.shape == first.shape
        and own.dtype == first.dtype
        and own.is_contiguous()
        and own.storage_offset() == first.storage_offset() + place * size
        and own.untyped_storage().data_ptr() == storage
        for place, own in enumerate(tensors)
    )
    if not are_rows or not size or not storage:  # without memory of its own nothing is shared
        return torch.stack(tensors)
    shape, strides = (len(tensors), *first.shape), (size, *first.stride())
    return first.detach().as_strided(shape, strides, first.storage_offset())
