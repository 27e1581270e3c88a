"""Tables of vectors, looked up by token ids."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from udpfl.engine._operators import checking
from udpfl.engine.layers.rule import Named, Rule, Use, sizes
from udpfl.errors import Unsupported


class Embedding(Rule):
    """Rows of a table. A token that occurs twice in a sample adds up before it is measured."""

    looks: ClassVar[bool] = True

    @classmethod
    def supports(cls, module: nn.Module) -> bool:
        m: Any = module
        return m.max_norm is None and not m.scale_grad_by_freq

    def forward(self, use: Use, weights: Named) -> Tensor:
        return F.embedding(self._rows(use.x, use.lanes), weights["weight"].flatten(0, 1))

    def _rows(self, x: Tensor, lanes: int) -> Tensor:
        """Token ids as rows of all lanes' tables, one under the other."""
        rows = self.module.num_embeddings
        with checking():
            if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < rows:
                # Beyond its own table lies the table of another client.
                raise Unsupported(f"a token id lies outside the {rows} rows of the embedding")
        offset = torch.arange(lanes, device=x.device) * self.module.num_embeddings
        return x + offset.repeat_interleave(x.shape[0] // lanes).view(-1, *([1] * (x.dim() - 1)))

    def input_gradient(self, use: Use, weights: Named) -> Tensor:
        raise AssertionError("token ids have no gradient")

    def _merged(self, use: Use) -> tuple[Tensor, Tensor]:
        """Ids [N, T] and gradients [N, T, E], each id's gradients moved to its first place."""
        x, g = use.x, use.g
        ids = x.reshape(x.shape[0], -1)
        if use.kept is not None:  # on CUDA they would be added up in another order
            return ids, use.kept
        rows = g.reshape(x.shape[0], -1, g.shape[-1])
        if self.module.padding_idx is not None:
            rows = rows * (ids != self.module.padding_idx).unsqueeze(-1)
        first = (ids.unsqueeze(2) == ids.unsqueeze(1)).to(torch.int8).argmax(2)
        places = first.unsqueeze(2).expand_as(rows)
        use.kept = torch.zeros_like(rows).scatter_add_(1, places, rows)
        return ids, use.kept

    def each(self, use: Use) -> Named:
        ids, rows = self._merged(use)
        full = rows.new_zeros(len(ids), *self.module.weight.shape)
        full.scatter_add_(1, ids.unsqueeze(2).expand_as(rows), rows)
        return {"weight": full.view(use.lanes, -1, *self.module.weight.shape)}

    def norms(self, use: Use, p: int) -> Named:
        merged = self._merged(use)[1]
        return {"weight": sizes(merged.unflatten(0, (use.lanes, -1)), p)}

    def put_weighted(self, use: Use, factors: Tensor, total: Named) -> None:
        if "weight" in use.written:
            super().put_weighted(use, factors, total)
            return
        each = factors.reshape(-1, 1, 1)
        rows = torch.where(each != 0, self._merged(use)[1] * each, 0.0)
        table = rows.new_zeros(use.lanes * self.module.num_embeddings, rows.shape[-1])
        table.index_add_(0, self._rows(use.x, use.lanes).flatten(), rows.flatten(0, 1))
        total["weight"].copy_(table.view(use.lanes, *self.module.weight.shape))
