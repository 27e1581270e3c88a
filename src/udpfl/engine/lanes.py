"""A user's model on many lanes at once, with the gradient of every sample at hand.

The model is copied, never wrapped: its parameter names and its `state_dict` stay the user's own. In
the copy each layer with a rule (`layers/`) applies its lane's weights and notes its input and the
gradient of its output. Before training the result is compared with automatic differentiation, one
sample at a time; a model whose forward pass does something the rules do not see (raw
parameters, sequence-first tensors, samples that look at each other) goes through `torch.func`.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from udpfl.engine.gradients import BookKept, Gradients, Layout, Tap, WrittenOut
from udpfl.engine.layers import RULES, Rule, Use
from udpfl.engine.modes import DROPOUT, evaluating, in_double, no_dropout
from udpfl.engine.precision import full_precision
from udpfl.engine.trial import Trial, agree, trial_batches
from udpfl.errors import InvalidInput, Unsupported

log = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs [N, ...] and targets [N, ...] to one loss per sample [N]."""

_SEES_OTHERS = (nn.modules.batchnorm._BatchNorm,)


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
        tap, (tap.use.gradient,) = ctx.tap, gradients
        back = None
        if ctx.needs_input_grad[0]:
            back = tap.rule.input_gradient(tap.use, ctx.weights)
        return back, None, None, None


class _Pass(threading.local):
    """What the layers of one forward pass share. Every thread has its own."""

    def __init__(self) -> None:
        self.begin(1, {})

    def begin(self, lanes: int, weights: dict[str, Tensor]) -> None:
        self.lanes, self.weights = lanes, weights
        self.taps: list[Tap] = []

    def end(self) -> list[Tap]:
        """The uses of layers in this pass; nothing of it is kept alive."""
        taps = self.taps
        self.begin(1, {})
        return taps


class LaneModel:
    """Forward passes and per-sample gradients of L lanes of one architecture."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        refuse_shared_statistics(model)
        self._loss = loss
        try:
            self._model, self._plain = copy.deepcopy(model), copy.deepcopy(model)
        except Exception as error:  # torch refuses to copy some computed weights
            raise Unsupported(f"the model cannot be copied: {_first_line(error)}") from error
        if not model.training:
            self._model.train()
            self._plain.train()
        trainable = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        if not trainable:
            raise Unsupported("the model has no trainable parameter")
        wrong = [n for n, p in trainable.items() if p.dtype != torch.float32]
        if wrong:
            raise Unsupported(f"parameter {wrong[0]} is not float32: norms would not be exact")
        self.layout = Layout(tuple(trainable), tuple(p.shape for p in trainable.values()))
        names = {id(p): n for n, p in trainable.items()}
        self._anchor = torch.zeros((), requires_grad=True)
        self._pass = _Pass()
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
            current = self._pass
            weights = {n: current.weights[name] for n, name in trained.items()}
            for n in frozen:
                weights[n] = own[n].detach().expand(current.lanes, *own[n].shape)
            x = rule.prepare(x)
            tap = Tap(rule, trained, Use(x.detach(), current.lanes))
            current.taps.append(tap)
            tapped: Any = _Tapped.apply
            y: Tensor = tapped(x, self._anchor, tap, weights)
            return y

        module.forward = forward

    def to(self, device: torch.device) -> LaneModel:
        """Move the copy's buffers and frozen parameters; lane weights are handed in."""
        self._model.to(device)
        self._plain.to(device)
        self._anchor = torch.zeros((), requires_grad=True, device=device)
        return self

    @property
    def reentrant(self) -> bool:
        """Whether threads may compute at the same time: nothing draws from a shared generator."""
        random = any(isinstance(module, DROPOUT) for module in self._model.modules())
        return self.book_keeping and not random

    def initial(self) -> Tensor:
        """The model's own parameters as one flat vector."""
        named = dict(self._plain.named_parameters())
        return self.layout.flat({n: named[n].detach() for n in self.layout.names}).clone()

    def outputs(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Evaluate one parameter vector [d] on a batch, without gradients, in evaluation mode."""
        with torch.no_grad(), evaluating(self._plain):
            result: Tensor = functional_call(self._plain, self.layout.named(parameters), (inputs,))
        return result

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per sample."""
        return self._loss(outputs, targets)

    def public_gradient(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean loss of one vector [d] over a batch, and its gradient [d], in evaluation mode.

        Neither clipped nor noised: for records that are public, never for a client's.
        """
        weights = parameters.detach().clone().requires_grad_()
        with torch.enable_grad(), evaluating(self._plain):
            outputs = functional_call(self._plain, self.layout.named(weights), (inputs,))
            loss = self._loss(outputs, targets).mean()
            (gradient,) = torch.autograd.grad(loss, weights)
        return loss.detach(), gradient

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
        current = self._pass
        current.begin(parameters.shape[0], self.layout.named(parameters))
        with torch.enable_grad():
            outputs = self._model(inputs.flatten(0, 1))
            loss = self._loss(outputs, targets.flatten(0, 1))
            if loss.shape != (real.numel(),):
                raise Unsupported(
                    f"the loss must give one number per sample, got shape {tuple(loss.shape)}"
                )
            torch.where(real.flatten(), loss, 0.0).sum().backward()
        return BookKept(current.end(), real, self.layout)

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
        """Try the model on a few public records; returns the bytes that one sample takes.

        parameters [d], inputs and targets [n, ...], n >= 1. From the records two batches of eight
        are made, some rows scaled, some zero, in different orders. A row's gradient must be the
        same alone and in either batch. Where the layer rules do not achieve that, `torch.func`
        takes over, one sample at a time; where that fails too the model is refused. This finds
        mistakes. It cannot find a model that is made to hide what it does.
        """
        # A little away from the start, where no gradient vanishes because a layer starts at zero.
        wave = torch.arange(parameters.numel(), device=parameters.device, dtype=torch.float32)
        parameters = (parameters + 0.02 * torch.sin(wave)).unsqueeze(0)
        batches = trial_batches(inputs, targets)
        with full_precision(parameters.device), no_dropout(self._model, self._plain):
            self._tried(batches[0])
            alone = [self._alone(parameters, *batch) for batch in batches]
            if not agree(alone[0][batches[1].order], alone[1]):
                self._refuse_memory(parameters, batches)
            per_sample = 16 * self.layout.dimension
            if self.book_keeping:
                per_sample = self._compared(parameters, batches, alone) or per_sample
        return per_sample

    def _tried(self, batch: Trial) -> None:
        """One forward pass: model, data and loss fit together, and leave nothing behind."""
        before = {name: buffer.clone() for name, buffer in self._plain.named_buffers()}
        try:
            with torch.no_grad():
                outputs = self._plain(batch.inputs)
                losses = self._loss(outputs, batch.targets)
        except Exception as error:  # whatever the user's own code raises
            raise InvalidInput(
                "model",
                f"does not fit the data (inputs {tuple(batch.inputs.shape)}, targets "
                f"{tuple(batch.targets.shape)}): {_first_line(error)}",
            ) from error
        if losses.shape != (len(batch.inputs),):
            raise InvalidInput(
                "loss", f"must give one number per sample, got shape {tuple(losses.shape)}"
            )
        for name, buffer in self._plain.named_buffers():
            if not torch.equal(buffer, before[name]):
                raise Unsupported(
                    f"buffer {name} changes in the forward pass: statistics of private records "
                    "would be released without noise"
                )

    def _alone(self, parameters: Tensor, x: Tensor, y: Tensor, order: Tensor) -> Tensor:
        """Every row's gradient by automatic differentiation, one sample at a time [n, d]."""
        real = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
        try:
            full = self._by_func(parameters, x.unsqueeze(0), y.unsqueeze(0), real).written_out()
        except Exception as error:  # whatever the user's own forward pass raises
            raise Unsupported(
                "per-sample gradients are not available for "
                f"{', '.join(self._uncovered) or 'this model'}: {_first_line(error)}"
            ) from error
        return full[0]

    def _refuse_memory(self, parameters: Tensor, batches: Sequence[Trial]) -> None:
        """Two answers to one record: random (then never mind the rules), or a memory."""
        with evaluating(self._plain):
            calm = [self._alone(parameters, *batch) for batch in batches]
        if not agree(calm[0][batches[1].order], calm[1]):
            raise Unsupported(
                "the model answers the same record in two ways: it keeps something of the records "
                "it saw before, so clipping would bound nothing"
            )
        if self.book_keeping:
            self._abandon_rules("the forward pass draws random numbers outside of dropout layers")

    def _compared(
        self, parameters: Tensor, batches: Sequence[Trial], alone: Sequence[Tensor]
    ) -> int | None:
        """Bytes per sample if the rules agree with automatic differentiation, else None."""
        per_sample = 0
        for (x, y, _), expected in zip(batches, alone, strict=True):
            real = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
            try:
                kept = self._by_book_keeping(parameters, x.unsqueeze(0), y.unsqueeze(0), real)
                found = kept.written_out()[0]
            except Exception as error:  # whatever the user's own forward pass raises
                self._abandon_rules(f"the layer rules failed: {_first_line(error)}")
                return None
            if not agree(found, expected) and not self._agree_in_double(parameters, x, y):
                self._abandon_rules(
                    "samples of a batch see each other, or the forward pass does more than its "
                    "layers show; every sample is computed alone"
                )
                return None
            per_sample = kept.bytes_per_sample()
        return per_sample

    def _agree_in_double(self, parameters: Tensor, x: Tensor, y: Tensor) -> bool:
        """The same comparison with more digits.

        A normalisation of almost nothing magnifies rounding, and a kink turns it into a jump: both
        look like a difference in float32, and only there.
        """
        x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
        real = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
        batch = (parameters.double(), x.unsqueeze(0), y.unsqueeze(0), real)
        with in_double(self._model, self._plain):
            try:
                found = self._by_book_keeping(*batch).written_out()
                expected = self._by_func(*batch).written_out()
            except Exception:  # a forward pass that insists on float32
                return False
        return agree(found[0], expected[0])

    def _abandon_rules(self, why: str) -> None:
        self.book_keeping = False
        self._explain(why)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _uncovered(model: nn.Module) -> list[str]:
    """Modules that own trainable parameters no rule covers."""
    missing = []
    for name, module in model.named_modules():
        owned = [p for p in module.parameters(recurse=False) if p.requires_grad]
        rule, names = RULES.get(type(module)), set(module._parameters)
        if owned and (rule is None or names - {"weight", "bias"} or not rule.supports(module)):
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
