"""Layers that run with the weights of many lanes and note what a gradient of each sample takes.

Every layer with trainable parameters gets another `forward`: it applies its rule (`layers/`) to the
weights of the pass and keeps its input; the backward pass adds the gradient of its output.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from udpfl.engine._gradients import Tap
from udpfl.engine._pools import install_pools
from udpfl.engine.layers import RULES, Rule, Use


class _Tapped(torch.autograd.Function):
    """Run a rule forward; in the backward pass keep the output gradient for later."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, tap: Tap, weights: dict[str, Tensor]
    ) -> Tensor:
        ctx.tap, ctx.weights = tap, weights
        return tap.rule.forward(tap.use, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        tap, (gradient,) = ctx.tap, gradients
        tap.use.gradient = gradient.bfloat16() if tap.use.rounded else gradient
        back = None
        if ctx.needs_input_grad[0]:
            back = tap.rule.input_gradient(tap.use, ctx.weights)
        return back, None, None, None


class Pass(threading.local):
    """What the layers of one forward pass share. Every thread has its own."""

    def __init__(self) -> None:
        self.plain: nn.Module | None = None
        """The model as the user wrote it, for single records."""
        self.begin(1, {})

    def begin(self, lanes: int, weights: dict[str, Tensor], *, rounds: bool = False) -> None:
        """Layers apply these weights [lanes, ...] from now on, and may round to bfloat16."""
        self.lanes, self.weights, self.rounds = lanes, weights, rounds
        self.taps: list[Tap] = []

    def end(self) -> list[Tap]:
        """The uses of layers in this pass; nothing of it is kept alive."""
        taps = self.taps
        self.begin(1, {})
        return taps


class TappedLayers:
    """The layers of a model that rules run, and the pass that is under way."""

    def __init__(self) -> None:
        self.look = False
        """Whether a layer looks at numbers on the device."""
        self.to(None)

    def to(self, device: torch.device | None) -> None:
        """Passes from now on are on this device; None is torch's default."""
        self.current = Pass()
        self._anchor = torch.zeros((), requires_grad=True, device=device)

    @property
    def device(self) -> torch.device:
        """Where passes are."""
        return self._anchor.device

    def install(self, model: nn.Module, names: dict[int, str]) -> None:
        """Let rules run the layers of a model; `names` of trainable parameters, by their id."""
        for module in model.modules():
            if any(p.requires_grad for p in module.parameters(recurse=False)):
                self._install(module, RULES[type(module)](module), names)
        install_pools(model)

    def _install(self, module: nn.Module, rule: Rule, names: dict[int, str]) -> None:
        self.look |= rule.looks
        own = dict(module.named_parameters(recurse=False))
        trained = {n: names[id(p)] for n, p in own.items() if id(p) in names}
        frozen = [n for n in own if n not in trained]

        def forward(x: Tensor) -> Tensor:
            current = self.current
            weights = {n: current.weights[name] for n, name in trained.items()}
            for n in frozen:
                weights[n] = own[n].detach().expand(current.lanes, *own[n].shape)
            x = rule.prepare(x)
            use = Use(x.detach(), current.lanes)
            if current.rounds and rule.multiplies and x.dtype == torch.float32:
                use = Use(use.x.bfloat16(), current.lanes, rounded=True)
                weights["weight"] = weights["weight"].bfloat16()
            tap = Tap(rule, trained, use)
            current.taps.append(tap)
            tapped: Any = _Tapped.apply
            y: Tensor = tapped(x, self._anchor, tap, weights)
            return y

        module.forward = forward


def uncovered(model: nn.Module) -> list[str]:
    """Modules that own trainable parameters no rule covers."""
    missing = []
    for name, module in model.named_modules():
        owned = [p for p in module.parameters(recurse=False) if p.requires_grad]
        rule, names = RULES.get(type(module)), set(module._parameters)
        if owned and (rule is None or names - {"weight", "bias"} or not rule.supports(module)):
            missing.append(f"{name or 'the model itself'} ({type(module).__name__})")
    return missing
