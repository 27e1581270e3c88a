"""Batch normalisation mixes the records of a batch, so one record's gradient is not its own.

Group normalisation looks at one record at a time and keeps the sensitivity argument true.

References: Wu and He, "Group Normalization", ECCV 2018.
"""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.parameter import is_lazy

from udpfl.errors import InvalidInput, Unsupported

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_LEAST_CHANNELS = 16


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of `model` with group in place of batch normalisation, parameter names unchanged.

    There are as many groups as divide the channels, at most `groups`. `BatchNorm1d` may see
    vectors, with one value per channel: there a group has 16 channels or is the only one, because
    normalising fewer values would erase most of what they say. Running statistics are dropped.

    Args:
        model: Any network; it stays as it is.
        groups: The most groups of a layer.

    Returns:
        The copy.

    Raises:
        InvalidInput: `groups` is not a whole number from 1.
        Unsupported: A lazy layer has no shape yet.

    Example:
        >>> import torch
        >>> from udpfl.models import replace_batchnorm
        >>> replace_batchnorm(torch.nn.Sequential(torch.nn.BatchNorm2d(8)), groups=4)[0].num_groups
        4
    """
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise InvalidInput("groups", f"must be a whole number from 1, got {groups!r}")
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise Unsupported("a lazy layer has no shape yet: run the model on one batch before")
    model = copy.deepcopy(model)
    if isinstance(model, BatchNorm):
        return _group_norm(model, groups)
    done: dict[nn.Module, nn.GroupNorm] = {}
    for parent in list(model.modules()):
        # `_modules` lists a layer under each of its names; `named_children` shows the first only.
        for name, child in list(parent._modules.items()):
            if isinstance(child, BatchNorm):
                if child not in done:
                    done[child] = _group_norm(child, groups)
                setattr(parent, name, done[child])
    return model


def _group_norm(layer: BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    most = groups
    if isinstance(layer, nn.BatchNorm1d):
        most = max(1, min(groups, channels // _LEAST_CHANNELS))
    number = max(n for n in range(1, most + 1) if channels % n == 0)
    fresh = nn.GroupNorm(number, channels, eps=layer.eps, affine=layer.affine)
    # The very parameters, not their values: dtype, device, tying and requires_grad stay.
    fresh.weight, fresh.bias = layer.weight, layer.bias
    return fresh.train(layer.training)
