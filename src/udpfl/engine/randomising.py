"""Randomisers at work: answers about clipped vectors, on their device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from udpfl.engine.noise import Noiser, draw_normal
from udpfl.engine.randomness import Key, PrivateStream, Words
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import CoordinateResponse, DirectionResponse, Randomiser


class RandomisingNoiser(Noiser):
    """Each lane its own randomiser; what comes out has nothing of the vector but the answers."""

    def __init__(self, randomisers: Sequence[Randomiser]) -> None:
        self.randomisers = tuple(randomisers)

    def lanes(self, which: slice) -> RandomisingNoiser:
        return RandomisingNoiser(self.randomisers[which])

    def std(self, device: torch.device) -> Tensor:
        return torch.tensor([own.noise_std for own in self.randomisers], device=device)

    def add(self, sums: Tensor, stream: PrivateStream, keys: Sequence[Key]) -> Tensor:
        """A message about each row [L, d].

        Guarantee: exactly what the randomiser says, rounding included. Questions are drawn before
        the row is looked at, an answer is a comparison of whole numbers, and what is computed from
        answers afterwards knows nothing else of the row.
        """
        if not len(self.randomisers) == len(sums) == len(keys):
            raise InvalidInput(
                "randomisers",
                f"{len(self.randomisers)} for {len(sums)} lanes with {len(keys)} keys",
            )
        rows = [
            _message(own, row.double(), stream.words(key, row.device))
            for own, row, key in zip(self.randomisers, sums, keys, strict=True)
        ]
        return torch.stack(rows).float()


def _message(randomiser: Randomiser, row: Tensor, words: Words) -> Tensor:
    if randomiser.dimension != len(row):
        raise InvalidInput(
            "dimension", f"the randomiser is for {randomiser.dimension} numbers, not {len(row)}"
        )
    match randomiser:
        case CoordinateResponse():
            return _coordinates(randomiser, row, words)
        case DirectionResponse():
            return _directions(randomiser, row, words)
        case _:
            raise Unsupported(f"no sampler for {type(randomiser).__name__}")


def _coordinates(randomiser: CoordinateResponse, row: Tensor, words: Words) -> Tensor:
    asked = torch.arange(len(row), device=row.device)
    if randomiser.answers < len(row):
        order = torch.empty_like(asked)
        words(order)
        asked = order.argsort()[: randomiser.answers]
    message = torch.zeros_like(row)
    signs = _answers(row[asked] / randomiser.bound, randomiser.lean, words)
    message[asked] = signs * randomiser.size
    return message


def _directions(randomiser: DirectionResponse, row: Tensor, words: Words) -> Tensor:
    message, question = torch.zeros_like(row), row.norm() / randomiser.bound
    for _ in range(randomiser.answers):
        direction = draw_normal(words, row)
        direction /= direction.norm()
        side = torch.sign(direction @ row)
        sign = _answers((side * question).reshape(1), randomiser.lean, words)
        message += sign * direction
    return message * randomiser.size


def _answers(questions: Tensor, lean: float, words: Words) -> Tensor:
    """+1 with probability (1 + t lean) / 2, to 2^-64, and -1 otherwise, for questions t [n]."""
    drawn = torch.empty(questions.shape, dtype=torch.int64, device=questions.device)
    words(drawn)
    asked = questions.nan_to_num(0.0).clamp(-1.0, 1.0)  # what is no number is answered by chance
    edge = (asked * lean * 2.0**63).long()  # |edge| < 2^63: lean is below 1
    return torch.where(drawn < edge, 1.0, -1.0).to(questions.dtype)
