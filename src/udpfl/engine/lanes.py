"""A user's model on many lanes at once, with the gradient of every sample at hand.

The model is copied, never wrapped: its parameter names and its `state_dict` stay the user's own. In
the copy each layer with a rule (`layers.py`) applies its lane's weights and notes its input and the
gradient of its output. On the first batch the result is compared with automatic differentiation,
one sample at a time; a model whose forward pass does something the rules do not see (raw
parameters, sequence-first tensors, samples that look at each other) goes through `torch.func`.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from udpfl.engine.gradients import BookKept, Gradients, Layout, Tap, WrittenOut
from udpfl.engine.layers import RULES, Rule
from udpfl.engine.precision import full_precision
from udpfl.errors import Unsupported

log = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs [N, ...] and targets [N, ...] to one loss per sample [N]."""

_SEES_OTHERS = (nn.modules.batchnorm._BatchNorm,)
_AGREEMENT = 1e-3


class _Tapped(torch.autograd.Function):
    """Run a rule forward; in the backward pass keep the output gradient for later."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, tap: Tap, weights: dict[str, Tensor], lanes: int
    ) -> Tensor:
        ctx.tap, ctx.weights, ctx.lanes = tap, weights, lanes
        return tap.rule.forward(x, weights, lanes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        tap, (g,) = ctx.tap, gradients
        tap.g = g
        back = None
        if ctx.needs_input_grad[0]:
            back = tap.rule.input_gradient(tap.x, g, ctx.weights, ctx.lanes)
        return back, None, None, None, None


class LaneModel:
    """Forward passes and per-sample gradients of L lanes of one architecture."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        refuse_shared_statistics(model)
        self._loss = loss
        self._model = copy.deepcopy(model)
        trainable = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        if not trainable:
            raise Unsupported("the model has no trainable parameter")
        wrong = [n for n, p in trainable.items() if p.dtype != torch.float32]
        if wrong:
            raise Unsupported(f"parameter {wrong[0]} is not float32: norms would not be exact")
        self.layout = Layout(tuple(trainable), tuple(p.shape for p in trainable.values()))
        names = {id(p): n for n, p in trainable.items()}
        self._anchor = torch.zeros((), requires_grad=True)
        self._taps: list[Tap] = []
        self._weights: dict[str, Tensor] = {}
        self._lanes = 1
        self._plain = copy.deepcopy(model)
        self._uncovered = _uncovered(self._model)
        self.book_keeping = not self._uncovered
        if self.book_keeping:
            for module in self._model.modules():
                if any(p.requires_grad for p in module.parameters(recurse=False)):
                    self._install(module, RULES[type(module)](module), names)
        else:
            self._explain(f"no rule for {', '.join(self._uncovered)}")
        self._model.requires_grad_(False)

    def _explain(self, why: str) -> None:
        log.warning("per-sample gradients by torch.func (slower, more memory): %s", why)

    def _install(self, module: nn.Module, rule: Rule, names: dict[int, str]) -> None:
        own = dict(module.named_parameters(recurse=False))
        trained = {n: names[id(p)] for n, p in own.items() if id(p) in names}
        frozen = [n for n in own if n not in trained]

        def forward(x: Tensor) -> Tensor:
            weights = {n: self._weights[name] for n, name in trained.items()}
            for n in frozen:
                weights[n] = own[n].detach().expand(self._lanes, *own[n].shape)
            x = rule.prepare(x)
            tap = Tap(rule, trained, x.detach())
            self._taps.append(tap)
            tapped: Any = _Tapped.apply
            y: Tensor = tapped(x, self._anchor, tap, weights, self._lanes)
            return y

        module.forward = forward

    def to(self, device: torch.device) -> LaneModel:
        """Move the copy's buffers and frozen parameters; lane weights are handed in."""
        self._model.to(device)
        self._plain.to(device)
        self._anchor = torch.zeros((), requires_grad=True, device=device)
        return self

    def initial(self) -> Tensor:
        """The model's own parameters as one flat vector."""
        named = dict(self._plain.named_parameters())
        return self.layout.flat({n: named[n].detach() for n in self.layout.names}).clone()

    def outputs(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Evaluate one parameter vector [d] on a batch, without gradients, in evaluation mode."""
        self._plain.eval()
        with torch.no_grad():
            result: Tensor = functional_call(self._plain, self.layout.named(parameters), (inputs,))
        self._plain.train()
        return result

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per sample."""
        return self._loss(outputs, targets)

    def gradients(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
    ) -> Gradients:
        """Per-sample gradients: parameters [L, d], inputs and targets [L, B, ...], real [L, B]."""
        if not self.book_keeping:
            return self._by_func(parameters, inputs, targets, real)
        return self._by_book_keeping(parameters, inputs, targets, real)

    def _by_book_keeping(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
    ) -> BookKept:
        self._taps = []
        self._lanes = parameters.shape[0]
        self._weights = self.layout.named(parameters)
        with torch.enable_grad():
            outputs = self._model(inputs.flatten(0, 1))
            loss = self._loss(outputs, targets.flatten(0, 1))
            if loss.shape != (real.numel(),):
                raise Unsupported(
                    f"the loss must give one number per sample, got shape {tuple(loss.shape)}"
                )
            torch.where(real.flatten(), loss, 0.0).sum().backward()
        taps, self._taps, self._weights = self._taps, [], {}
        return BookKept(taps, real, self.layout)

    def _by_func(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
    ) -> WrittenOut:
        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(self._plain, weights, (x.unsqueeze(0),))
            return self._loss(outputs, y.unsqueeze(0)).sum()

        each = vmap(vmap(grad(loss), in_dims=(None, 0, 0), randomness="different"),
                    randomness="different")  # fmt: skip
        with warnings.catch_warnings():  # slow operators: the note in the log has said so
            warnings.filterwarnings("ignore", "There is a performance drop")
            named = each(self.layout.named(parameters), inputs, targets)
        return WrittenOut(self.layout.flat(named).masked_fill_(~real.unsqueeze(2), 0.0), real)

    def check(self, parameters: Tensor, inputs: Tensor, targets: Tensor) -> int:
        """Compare the rules with automatic differentiation on a few samples; bytes per sample.

        parameters [d], inputs and targets [B, ...] with B >= 1. Falls back to `torch.func` when
        they disagree, and raises where that fails as well. The comparison is made a little away
        from `parameters`, where no gradient vanishes only because a layer starts at zero.
        """
        with full_precision(parameters.device):
            return self._checked(parameters, inputs, targets)

    def _checked(self, parameters: Tensor, inputs: Tensor, targets: Tensor) -> int:
        wave = torch.arange(parameters.numel(), device=parameters.device, dtype=torch.float32)
        parameters = parameters + 0.02 * torch.sin(wave)
        width = min(len(inputs), 3)
        x, y = inputs[:width].unsqueeze(0), targets[:width].unsqueeze(0)
        real = torch.ones(1, width, dtype=torch.bool, device=inputs.device)
        state = {n: b.clone() for n, b in self._model.named_buffers()}
        random = [m for m in self._model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        for module in (self._model, self._plain):
            module.eval() if random else module.train()  # a fair comparison draws no dropout
        per_sample = 16 * self.layout.dimension
        try:
            oracle: Tensor | None = self._by_func(parameters.unsqueeze(0), x, y, real).written_out()
        except RuntimeError as error:
            oracle = None
            if not self.book_keeping:
                raise Unsupported(
                    "per-sample gradients are not available for "
                    f"{', '.join(self._uncovered) or 'this model'}: {str(error).splitlines()[0]}"
                ) from None
            log.debug("the rules go unchecked, torch.func failed: %s", error)
        if self.book_keeping:
            try:
                kept = self._by_book_keeping(parameters.unsqueeze(0), x, y, real)
                ours: Tensor | None = kept.written_out()
                per_sample = kept.bytes_per_sample()
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                self._abandon_rules(f"the layer rules failed: {str(error).splitlines()[0]}")
                ours = oracle
            if oracle is not None and ours is not None:
                scale = oracle.abs().max().clamp(min=1e-6)
                if not bool(((ours - oracle).abs() <= _AGREEMENT * scale).all()):
                    self._abandon_rules("the model's forward pass does more than its layers show")
            if oracle is None and not self.book_keeping:
                raise Unsupported("per-sample gradients are not available for this model")
        for module in (self._model, self._plain):
            module.train()
        for name, buffer in self._model.named_buffers():
            if not torch.equal(buffer, state[name]):
                raise Unsupported(
                    f"buffer {name} changes in the forward pass: statistics of private records "
                    "would be released without noise"
                )
        return per_sample if self.book_keeping else 16 * self.layout.dimension

    def _abandon_rules(self, why: str) -> None:
        self.book_keeping = False
        self._explain(why)


def _uncovered(model: nn.Module) -> list[str]:
    """Modules that own trainable parameters no rule covers."""
    missing = []
    for name, module in model.named_modules():
        owned = [p for p in module.parameters(recurse=False) if p.requires_grad]
        rule = RULES.get(type(module))
        if owned and (rule is None or not rule.supports(module)):
            missing.append(f"{name or 'the model itself'} ({type(module).__name__})")
    return missing


def refuse_shared_statistics(model: nn.Module) -> None:
    """Refuse layers that mix the samples of a batch or keep statistics of them."""
    for name, module in model.named_modules():
        if isinstance(module, _SEES_OTHERS):
            raise Unsupported(
                f"{name or 'the model'} ({type(module).__name__}) normalises over the batch, so "
                "one record changes every other record's gradient and clipping bounds nothing; use "
                "GroupNorm: udpfl.models.replace_batchnorm(model) does it"
            )
        if getattr(module, "track_running_stats", False):
            raise Unsupported(
                f"{name} ({type(module).__name__}) keeps running statistics of private records; "
                "set track_running_stats=False"
            )
