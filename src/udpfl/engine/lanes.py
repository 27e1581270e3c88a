"""A user's model on many lanes at once, with the gradient of every sample at hand.

The model is copied, never wrapped: its parameter names and its `state_dict` stay the user's own. In
the copy each layer with a rule applies its lane's weights and notes its input and the gradient of
its output (`taps.py`). Before training the result is compared with automatic differentiation of one
sample alone (`trial.py`); a model whose forward pass does something the rules do not see (raw
parameters, sequence-first tensors, samples that look at each other) goes through `torch.func`.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from udpfl.engine._gradients import BookKept, Gradients, Layout, WrittenOut
from udpfl.engine._graphs import PassGraphs
from udpfl.engine._modes import DROPOUT, drop_nothing, evaluating
from udpfl.engine._operators import Operators, Seen
from udpfl.engine._taps import TappedLayers, uncovered
from udpfl.engine._trial import tried
from udpfl.engine._widths import SingleRows, Widths, random_records
from udpfl.engine.generators import restored
from udpfl.engine.memory import first_line
from udpfl.engine.precision import Precision
from udpfl.errors import Unsupported

log = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs [N, ...] and targets [N, ...] to one loss per sample [N]."""

_SEES_OTHERS = (nn.modules.batchnorm._BatchNorm,)


class LaneModel:
    """Forward passes and per-sample gradients of L lanes of one architecture."""

    def __init__(self, model: nn.Module, loss: Loss, precision: Precision = "float32") -> None:
        refuse_shared_statistics(model)
        self._loss, self.precision = loss, precision
        try:
            self._model, self._plain = copy.deepcopy(model), copy.deepcopy(model)
        except Exception as error:  # torch refuses to copy some computed weights
            raise Unsupported(f"the model cannot be copied: {first_line(error)}") from error
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
        self._layers = TappedLayers()
        self._widths: dict[tuple[object, ...], Widths] = {}
        self._still: LaneModel | None = None
        """A copy without dropout, to try widths with."""
        self._public: tuple[Tensor, Tensor] | None = None
        self.reads = False
        """Whether numbers of records may decide on what is computed, as trials of widths showed."""
        self.graphs = PassGraphs()
        """Passes that were recorded on CUDA."""
        self._expected: dict[torch.Size, list[Seen]] = {}
        """What a pass computes for so many lanes and samples, whatever the records are."""
        missing = uncovered(self._model)
        why = f"no rule for {', '.join(missing)}" if missing else getattr(model, "why_alone", None)
        self.why_alone: str | None = why
        """Why every record is computed alone, if so; `check` decides."""
        self.lanes_apart = False
        """Whether lanes are computed one by one there: torch.func fails on some layers else."""
        self.one_by_one = False
        """Whether every pass has a single record, because torch.func fails on the model."""
        if why is None:
            self._layers.install(self._model, names)
        # A layer's output may be a view here, which must not be written to.
        activations: list[Any] = [m for m in self._model.modules() if getattr(m, "inplace", False)]
        for activation in activations:
            activation.inplace = False
        self._model.requires_grad_(False)

    @property
    def book_keeping(self) -> bool:
        """Whether the layer rules are used: fast, for records that do not see each other."""
        return self.why_alone is None

    def to(self, device: torch.device) -> LaneModel:
        """Move the copy's buffers and frozen parameters; lane weights are handed in."""
        self._model.to(device)
        self._plain.to(device)
        self._layers.to(device)
        self.graphs = PassGraphs()  # they know where buffers were
        return self

    @property
    def recordable(self) -> bool:
        """Whether a pass can be recorded: nothing draws, and nothing looks at what was computed."""
        watched = self._still is None or self._still.reads
        return self.reentrant and not watched and not self._layers.look

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

    def plain_losses(self, weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per sample with these weights by name, as the user wrote it, in training."""
        return self._loss(functional_call(self._plain, weights, (inputs,)), targets)

    def modules(self) -> list[nn.Module]:
        """The modules that the layer rules run, from the whole model to single layers."""
        return list(self._model.modules())

    def buffers(self) -> dict[str, Tensor]:
        """The model's buffers by name."""
        return dict(self._plain.named_buffers())

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

    def widths(
        self,
        inputs: Tensor,
        targets: Tensor,
        lanes: int,
        most: int,
        expected: float,
        order: int = 2,
    ) -> Widths | SingleRows:
        """Widths of passes at which no record's rounding depends on the others."""
        if self.one_by_one:
            return SingleRows()
        key = (lanes, most, round(expected), order, inputs.device, torch.get_num_threads())
        if key not in self._widths:
            if self._still is None:
                self._still = self.copied(
                    torch.float32, why_alone=self.why_alone, lanes_apart=self.lanes_apart
                )
            self._public = self._public or random_records(inputs, targets)
            self._widths[key] = Widths(self._still, self._public, lanes, most, expected, order)
        return self._widths[key]

    def gradients(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
    ) -> Gradients:
        """Per-sample gradients: parameters [L, d], inputs and targets [L, B, ...], real [L, B]."""
        _require_rules(self)
        by = self._by_book_keeping if self.book_keeping else partial(_by_func, self)
        if self._still is None or not self._still.reads:
            return by(parameters, inputs, targets, real)
        assert self._public is not None
        if real.shape not in self._expected:
            x, y = (t[0].expand(*real.shape, *t.shape[1:]).contiguous() for t in self._public)
            with restored(real.device), Operators() as usual:
                by(parameters, x, y, real)
            self._expected[real.shape] = usual.seen
        with Operators() as operators:
            found = by(parameters, inputs, targets, real)
        if operators.seen != self._expected[real.shape]:
            raise Unsupported(
                "a pass runs other operators, or on other shapes, than it does for public records: "
                "the records of a batch decide on it, so each of them changes how all the others "
                "are rounded"
            )
        return found

    def pass_gradients(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
    ) -> Gradients:
        """The same for a pass of training. Where it has one record [L, 1], by plain automatic
        differentiation: nobody else is in the batch, and all other ways take longer. (That rounds
        nothing to bfloat16.)"""
        if real.shape[1] > 1 or self.precision == "bfloat16":
            return self.gradients(parameters, inputs, targets, real)
        current = self._layers.current
        if current.plain is None:  # `functional_call` is not for several threads on one module
            current.plain = copy.deepcopy(self._plain)
        rows = []
        for weights, x, y in zip(parameters, inputs, targets, strict=True):
            own = weights.detach().clone().requires_grad_()
            with torch.enable_grad():
                outputs = functional_call(current.plain, self.layout.named(own), (x,))
                rows += torch.autograd.grad(self._loss(outputs, y).sum(), own)
        full = torch.stack(rows).unsqueeze(1)
        return _masked(full, real)

    def _by_book_keeping(
        self, parameters: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
    ) -> BookKept:
        current = self._layers.current
        rounds = self.precision == "bfloat16"
        current.begin(parameters.shape[0], self.layout.named(parameters), rounds=rounds)
        with torch.enable_grad():
            outputs = self._model(inputs.flatten(0, 1))
            loss = self._loss(outputs, targets.flatten(0, 1))
            if loss.shape != (real.numel(),):
                raise Unsupported(
                    f"the loss must give one number per sample, got shape {tuple(loss.shape)}"
                )
            torch.where(real.flatten(), loss, 0.0).sum().backward()
        return BookKept(current.end(), real, self.layout)

    def check(self, parameters: Tensor, inputs: Tensor, targets: Tensor) -> int:
        """Try the model on a few public records; returns the bytes that one sample takes.

        parameters [d], inputs and targets [n, ...], n >= 1; of many records a few with different
        targets are taken. Where records see each other by the layer rules, `torch.func` takes over,
        one record at a time; where that is no remedy either the model is refused.
        """
        verdict = tried(self, parameters, inputs, targets)
        self._public, self._still, self._widths = (inputs, targets), None, {}
        self.why_alone, self.lanes_apart = verdict.why_alone, verdict.lanes_apart
        self.one_by_one = verdict.one_by_one
        self._expected, self.graphs = {}, PassGraphs()
        _require_rules(self)
        if self.why_alone is not None:
            log.warning(
                "per-sample gradients %s (slower, more memory): %s",
                "one record at a time" if self.one_by_one else "by torch.func, each sample alone",
                self.why_alone,
            )
        return verdict.bytes_per_sample

    def without_records(self) -> LaneModel:
        """A copy after the same trial that knows no record: widths are tried with random ones.

        For several runs, of which one may hold in private what another has made public.
        """
        twin = LaneModel(self._plain, self._loss, self.precision).to(self._layers.device)
        twin.why_alone, twin.lanes_apart = self.why_alone, self.lanes_apart
        twin.one_by_one = self.one_by_one
        return twin

    def copied(
        self,
        dtype: torch.dtype,
        *,
        why_alone: str | None = None,
        lanes_apart: bool = False,
        training: bool = True,
    ) -> LaneModel:
        """A copy to be tried and thrown away; its dropout layers drop nothing."""
        precision: Precision = self.precision if why_alone is None else "float32"
        copied = LaneModel(self._plain, self._loss, precision).to(self._layers.device)
        copied.why_alone, copied.lanes_apart = why_alone, lanes_apart
        for network in (copied._model, copied._plain):
            drop_nothing(network)
            if dtype == torch.float64:
                network.double()
            if not training:
                network.eval()
        return copied


def _require_rules(model: LaneModel) -> None:
    """Refuse to round what only the layer rules round."""
    if model.precision == "bfloat16" and not model.book_keeping:
        raise Unsupported(
            "training.precision = 'bfloat16' rounds factors in layers that have a rule, and "
            f"this model is computed record by record ({model.why_alone}): use 'float32'"
        )


def _by_func(
    model: LaneModel, parameters: Tensor, inputs: Tensor, targets: Tensor, real: Tensor
) -> WrittenOut:
    """Per-sample gradients by `torch.func`, each sample alone."""

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return model.plain_losses(weights, x.unsqueeze(0), y.unsqueeze(0)).sum()

    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    layout, weights = model.layout, model.layout.named(parameters)
    with warnings.catch_warnings():  # slow operators: the note in the log has said so
        warnings.filterwarnings("ignore", "There is a performance drop")
        if model.lanes_apart:
            lanes = [
                layout.flat(each({n: w[lane] for n, w in weights.items()}, x, y))
                for lane, (x, y) in enumerate(zip(inputs, targets, strict=True))
            ]
            full = torch.stack(lanes)
        else:
            named = vmap(each, randomness="different")(weights, inputs, targets)
            full = layout.flat(named)
    return _masked(full, real)


def _masked(full: Tensor, real: Tensor) -> WrittenOut:
    """Gradients [L, B, d], without those of rows that fill up a pass."""
    return WrittenOut(full.masked_fill_(~real.unsqueeze(2), 0.0), real)


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
