"""Book-keeping rules, one file per kind of layer; `rule.py` says what a rule is."""

from torch import nn

from udpfl.engine.layers.affine import GroupNorm, LayerNorm
from udpfl.engine.layers.convolution import Convolution
from udpfl.engine.layers.embedding import Embedding
from udpfl.engine.layers.linear import Linear
from udpfl.engine.layers.rule import Named, Rule, Use, put_weighted, sizes

RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: Linear,
    nn.Conv1d: Convolution,
    nn.Conv2d: Convolution,
    nn.GroupNorm: GroupNorm,
    nn.LayerNorm: LayerNorm,
    nn.Embedding: Embedding,
}

__all__ = ["RULES", "Named", "Rule", "Use", "put_weighted", "sizes"]
