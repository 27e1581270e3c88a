"""Per-sample gradients of one chunk of samples, in whichever form is cheapest.

What a clipper needs of them: their sizes, their weighted sum, and, for coordinate clipping, the
gradients themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from udpfl.engine.layers import Rule, Use, put_weighted, sizes


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in the flat vector of a lane."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> list[int]:
        """Numbers per parameter."""
        return [shape.numel() for shape in self.shapes]

    @property
    def dimension(self) -> int:
        """Trainable numbers in all."""
        return sum(self.sizes)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a [..., dimension] tensor by parameter name."""
        parts = flat.split(self.sizes, dim=-1)
        return {
            name: part.view(flat.shape[:-1] + shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def flat(self, named: dict[str, Tensor]) -> Tensor:
        """The inverse of `named`."""
        lead = named[self.names[0]].dim() - len(self.shapes[0])
        parts = [named[name] for name in self.names]
        return torch.cat([part.reshape(*part.shape[:lead], -1) for part in parts], dim=-1)


class Gradients(ABC):
    """The gradients of B samples in each of L lanes."""

    real: Tensor
    """[L, B] bool: False where the batch is padded, or where a gradient was not finite."""

    @abstractmethod
    def norms(self, p: int) -> Tensor:
        """l1 (p = 1) or l2 (p = 2) norm of every sample's gradient [L, B], in double."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Sum over samples of factor * gradient [L, d], in the precision of the factors.

        On an accelerator a sample whose factor is zero counts for nothing, whatever it holds.
        """

    @abstractmethod
    def written_out(self) -> Tensor:
        """Every gradient [L, B, d]."""

    @abstractmethod
    def pieces(self, order: int) -> list[Tensor]:
        """What norms of this order and sums are made of, for every sample [L, B, n]."""

    def drop(self, bad: Tensor) -> None:
        """Make the marked samples' gradients zero, whatever they hold."""
        self.real = self.real & ~bad


class WrittenOut(Gradients):
    """Gradients held as one [L, B, d] tensor."""

    def __init__(self, gradients: Tensor, real: Tensor) -> None:
        self._gradients = gradients
        self.real = real

    def norms(self, p: int) -> Tensor:
        size = sizes(self._gradients, p)
        return size if p == 1 else size.sqrt()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        total = factors.new_empty(len(factors), self._gradients.shape[2])
        put_weighted(factors, self._gradients, total)
        return total

    def written_out(self) -> Tensor:
        return self._gradients

    def pieces(self, order: int) -> list[Tensor]:
        return [self.norms(order).unsqueeze(2), self._gradients]

    def drop(self, bad: Tensor) -> None:
        super().drop(bad)
        if not bad.is_cuda:  # what is not real has a factor of zero, and counts for nothing there
            self._gradients.masked_fill_(bad.unsqueeze(2), 0.0)


@dataclass
class Tap:
    """One use of a layer in the forward pass, and whose parameters it used."""

    rule: Rule
    parameters: dict[str, str]
    """The layer's own parameter name ("weight") to the model's ("features.0.weight")."""
    use: Use


class BookKept(Gradients):
    """Gradients never written out where norms and sums can be had from inputs and outputs."""

    def __init__(self, taps: list[Tap], real: Tensor, layout: Layout) -> None:
        self._taps = [tap for tap in taps if tap.use.gradient is not None]
        self._layout = layout
        self.real = real
        uses: dict[str, int] = {}
        for tap in self._taps:
            for name in tap.parameters.values():
                uses[name] = uses.get(name, 0) + 1
        self._shared = {name for name, count in uses.items() if count > 1}

    def norms(self, p: int) -> Tensor:
        total = torch.zeros(self.real.shape, dtype=torch.float64, device=self.real.device)
        for tap in self._taps:
            own_sizes = self._sizes(tap, p)
            for own, name in tap.parameters.items():
                if name not in self._shared:
                    total += own_sizes[own]
        for name in self._shared:  # uses add up before they are measured
            total += sizes(self._summed_uses(name), p)
        return total if p == 1 else total.sqrt()

    def _sizes(self, tap: Tap, p: int) -> dict[str, Tensor]:
        """Sums of |x|^p of a layer's parameters. Where one of them is shared all are written out,
        and what is written out is what is summed: so it is what has to be measured."""
        if self._shared.isdisjoint(tap.parameters.values()):
            return tap.rule.norms(tap.use, p)
        return {name: sizes(full, p) for name, full in tap.rule.write(tap.use).items()}

    def _summed_uses(self, name: str) -> Tensor:
        uses = [
            tap.rule.write(tap.use)[own]
            for tap in self._taps
            for own, wanted in tap.parameters.items()
            if wanted == name
        ]
        return torch.stack(uses).sum(0)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        total = factors.new_empty(len(factors), self._layout.dimension)
        named = self._layout.named(total)
        unused = set(named)
        for tap in self._taps:
            own = {n: name for n, name in tap.parameters.items() if name not in self._shared}
            if own:
                tap.rule.put_weighted(tap.use, factors, {n: named[own[n]] for n in own})
            unused -= set(own.values())
        for name in self._shared:  # the very numbers that were measured
            put_weighted(factors, self._summed_uses(name), named[name])
        for name in unused - self._shared:  # parameters that the forward pass did not use
            named[name].zero_()
        return total

    def written_out(self) -> Tensor:
        lanes, batch = self.real.shape
        use = self._taps[0].use if self._taps else None
        dtype = use.g.dtype if use and not use.rounded else torch.float32
        shape = (lanes, batch, self._layout.dimension)
        out = torch.zeros(shape, dtype=dtype, device=self.real.device)
        named = self._layout.named(out)
        for tap in self._taps:
            for own, name in tap.parameters.items():
                named[name] += tap.rule.write(tap.use)[own]
        return out

    def drop(self, bad: Tensor) -> None:
        super().drop(bad)
        if bad.is_cuda:  # what is not real has a factor of zero, and counts for nothing there
            return
        rows = bad.flatten()
        for tap in self._taps:
            use = tap.use
            # What was measured is what will be summed: written gradients are kept, less these rows.
            for name, full in use.written.items():
                mask = bad.view(*bad.shape, *([1] * (full.dim() - 2)))
                use.written[name] = full.masked_fill(mask, 0.0)
            use.gradient = use.g.masked_fill(rows.view(-1, *([1] * (use.g.dim() - 1))), 0.0)
            for name in ("x", "kept"):
                held = getattr(use, name)
                if held is not None and held.is_floating_point():
                    # 0 * inf would come back as not-a-number
                    mask = rows.view(-1, *([1] * (held.dim() - 1)))
                    setattr(use, name, held.masked_fill(mask, 0.0))

    def pieces(self, order: int) -> list[Tensor]:
        found = [self.norms(order)]
        for tap in self._taps:
            use = tap.use
            noted = [t for t in (use.x, use.g, use.kept) if t is not None and t.is_floating_point()]
            found += [*noted, *use.written.values()]
        return [t.reshape(*self.real.shape, -1) for t in found]

    def bytes_per_sample(self) -> int:
        """Memory that one sample takes in this pass, roughly."""
        samples = self.real.numel()
        floats = 0
        for tap in self._taps:
            floats += (2 * tap.use.x.numel() + 3 * tap.use.g.numel()) // samples
            floats += tap.rule.floats_written(tap.use)
        return 4 * floats
