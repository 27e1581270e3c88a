"""An encoder from random images: pieces of a few minutes, each kept, so that training goes on.

1. Images are drawn, a thousand a piece.
2. Of each stage in turn: patches of random images are brought to unit contrast and made equally
   strong in all directions; k-means finds the directions that are most common; what the answers to
   them have in common is measured, for the mixtures.
3. The mixtures that become features, from averages over parts of all images.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from udpfl.errors import InvalidInput
from udpfl.features.encoder import (
    STAGES,
    Encoder,
    Filters,
    Mixtures,
    Stage,
    check_whole,
    prepared,
)
from udpfl.features.files import save, stored
from udpfl.features.images import random_images
from udpfl.writing import write_whole

Progress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and how much there is."""
_PIECE = 1000
"""Images."""
_BATCH = 100
_DRAWN = 50
"""Images at once: what they need stays in the cache of a processor."""
_LEAST_ROWS = 40_000
"""Positions that are enough to measure what channels have in common."""


@dataclass(frozen=True)
class Recipe:
    """All that decides an encoder; the defaults are those of the one that is shipped.

    Example:
        >>> from udpfl.features import Recipe
        >>> Recipe(family="mixed", images=2000).stages[0].filters
        512
    """

    family: str = "leaves"
    """Of random images."""
    images: int = 4000
    """How many random images it is trained on."""
    size: int = 32
    """Pixels along a side."""
    seed: int = 0
    """Decides the images and the first patches."""
    stages: tuple[Stage, ...] = STAGES
    """How large each stage is."""
    parts: int = 3
    """Along each side, over which answers are averaged."""
    patches: int = 100_000
    """That k-means sees."""
    iterations: int = 8
    """Of k-means."""
    floor: float = 0.15
    """Added to the contrast of a patch, in standard deviations of all patches."""
    whitening: float = 0.1
    """Added to the strength of every direction of patches before it is divided by, in means."""
    threshold: float = 0.5
    """In standard deviations of a filter's answers."""
    levelling: float = 0.3
    """Mixtures are divided by their variance to this power; 1/2 would make all equally strong."""

    def name(self) -> str:
        """A name of pieces that were made by this recipe."""
        words = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:12]


def train(
    recipe: Recipe,
    out: Path,
    *,
    device: str | torch.device = "cpu",
    progress: Progress = lambda stage, done, total: None,
    minutes: float | None = None,
) -> bool:
    """Train an encoder on random images and write it; goes on where an earlier call stopped.

    Args:
        recipe: What decides the encoder.
        out: The file to write; pieces lie beside it until it is complete, in a folder named
            after it.
        device: Where to compute.
        progress: Told how far it has got.
        minutes: Stop after the first piece that ends later than so many minutes.

    Returns:
        Whether the encoder is complete.

    Raises:
        InvalidInput: The recipe cannot be followed.

    Example:
        >>> from pathlib import Path
        >>> from udpfl.features import Recipe, Stage, train
        >>> toy = Recipe("spectra", 20, stages=(Stage(8, 5, 2, 0, 6),), patches=500)
        >>> train(toy, Path("toy.safetensors"))
        True
    """
    check(recipe)
    _check_place(out)
    return _Training(recipe, out, torch.device(device), progress, minutes).run()


def check(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be followed."""
    for name, least, most in (
        ("images", 10, 10**6), ("seed", 0, 2**31 - 1), ("iterations", 0, 1000),
        ("patches", 1, 10**7),
    ):  # fmt: skip
        check_whole(name, getattr(recipe, name), least, most)
    for name in ("floor", "whitening", "threshold", "levelling"):
        if not 0 < getattr(recipe, name) < 100:
            raise InvalidInput(name, f"must be above 0 and below 100: {getattr(recipe, name)!r}")
    random_images(recipe.family, 1, size=recipe.size)
    with torch.device("meta"):
        Encoder(recipe.stages, recipe.parts)
    if recipe.patches < 2 * max(stage.filters for stage in recipe.stages):
        raise InvalidInput("patches", "must be at least two for every filter")
    side = recipe.size
    for number, stage in enumerate(recipe.stages):
        side = stage.side(side)
        if side < recipe.parts:
            raise InvalidInput("stages", f"stage {number + 1} leaves {side} positions along a side")


def _check_place(out: Path) -> None:
    """Refuse a file that could not be written in the end."""
    if not out.name or out.is_dir():
        raise InvalidInput("out", f"{out} is a folder; name the file to write")


class _Training:
    """One call: what is known of the encoder so far, and where pieces are kept."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        device: torch.device,
        progress: Progress,
        minutes: float | None,
    ) -> None:
        self.recipe, self.out, self.device, self.progress = recipe, out, device, progress
        self.folder = out.with_name(f"{out.name}.{recipe.name()}.pieces")
        self.ends = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        self.encoder = Encoder(recipe.stages, recipe.parts).to(device).requires_grad_(False)
        self.images = torch.empty(0)
        self.has_made = False
        """Whether this call has made a piece itself."""
        self.log: list[dict[str, Any]] = []

    def run(self) -> bool:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput("out", f"cannot write beside {self.out}: {error.strerror}") from None
        pieces = -(-self.recipe.images // _PIECE)
        drawn = []
        for number in range(pieces):
            self.progress("drawing random images", number, pieces)
            drawn.append(self._piece(f"images-{number}", partial(self._drawn, number))["images"])
            if self._is_late():
                return False
        self.images = torch.cat(drawn)
        for number in range(len(self.recipe.stages)):
            piece = self._piece(f"stage-{number + 1}", partial(self._stage, number))
            self.encoder.load_state_dict(piece, strict=False)
            if self._is_late():
                return False
        self.encoder.load_state_dict(self._piece("features", self._outputs), strict=False)
        save(self.out, self.encoder, {"recipe": asdict(self.recipe), "log": self.log})
        for told in self.log:
            for path in self._places(told["piece"]):
                path.unlink(missing_ok=True)
        with suppress(OSError):  # what somebody else has put there stays
            self.folder.rmdir()
        return True

    def _is_late(self) -> bool:
        """Whether to stop; a call that only read what others had made would never get further."""
        return self.has_made and time.monotonic() > self.ends

    def _places(self, name: str) -> tuple[Path, Path]:
        return self.folder / f"{name}.safetensors", self.folder / f"{name}.json"

    def _piece(self, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """A piece that was kept, or one that is made and kept now."""
        found = self._kept(name)
        if found is None:
            began = time.monotonic()
            with torch.no_grad():
                found = {key: own.cpu().contiguous() for key, own in make().items()}
            told = {"piece": name, "seconds": round(time.monotonic() - began, 1)}
            told["device"] = str(self.device)
            path, note = self._places(name)
            write_whole(path, stored().save(found))
            write_whole(note, json.dumps(told).encode())
            self.log.append(told)
            self.has_made = True
        return {key: own.to(self.device) for key, own in found.items()}

    def _kept(self, name: str) -> dict[str, Tensor] | None:
        """A piece of an earlier call; one that is damaged is made again."""
        path, note = self._places(name)
        try:
            told, found = json.loads(note.read_text()), stored().load(path.read_bytes())
        except Exception:  # safetensors raises its own type for each kind of damage
            return None
        self.log.append(told)
        return dict(found)

    def _drawn(self, number: int) -> dict[str, Tensor]:
        recipe = self.recipe
        count = min(_PIECE, recipe.images - number * _PIECE)
        found = []
        for start in range(0, count, _DRAWN):
            seed = (recipe.seed << 32) + number * _PIECE + start
            found.append(random_images(
                recipe.family, min(_DRAWN, count - start), size=recipe.size, seed=seed,
                device=self.device,
            ))  # fmt: skip
        return {"images": (torch.cat(found) * 255).round().to(torch.uint8)}

    def _batches(self) -> list[Tensor]:
        batches = self.images.to(self.device).split(_BATCH)
        return [prepared(own.float() / 255) for own in batches]

    def _stage(self, number: int) -> dict[str, Tensor]:
        """Filters of a stage, and the mixtures that the next one sees."""
        encoder, recipe, name = self.encoder, self.recipe, f"stage {number + 1}"
        filters: Any = encoder.stages[number]
        batches, maps = self._batches(), []
        for place, own in enumerate(batches):
            self.progress(f"{name}: looking at random images", place, len(batches))
            maps.append(encoder.maps(own, number))
        seen = torch.cat(maps)
        learn_filters(filters, seen, recipe, self.progress, name)
        prefixes = [f"stages.{number}."]
        if number < len(encoder.links):
            answers = torch.cat([filters(own).float() for own in seen[:800].split(_BATCH)])
            link: Any = encoder.links[number]
            learn_mixtures(link, answers, recipe.levelling)
            prefixes.append(f"links.{number}.")
        return _below(encoder, prefixes)

    def _outputs(self) -> dict[str, Tensor]:
        """The mixtures that become features, and what brings all stages to the same size."""
        encoder, batches = self.encoder, self._batches()
        averages: list[list[Tensor]] = []
        for place, own in enumerate(batches):
            self.progress("features of random images", place, len(batches))
            averages.append(encoder.averages(own, mirrored=True))
        for number, own_output in enumerate(encoder.outputs):
            own = torch.cat([found[number] for found in averages])
            output: Any = own_output
            learn_mixtures(output, own, self.recipe.levelling)
            encoder.scale[number] = 1 / output(own).flatten(1).norm(dim=1).mean()
        return _below(encoder, ["outputs.", "scale"])


def learn_filters(
    filters: Filters, maps: Tensor, recipe: Recipe, progress: Progress, name: str
) -> None:
    """The directions of patches that are most common, once all are equally strong."""
    count = len(filters.patches.weight)
    generator = torch.Generator(maps.device).manual_seed(recipe.seed)
    patches = _patches(maps, filters.kernel, recipe.patches, generator)
    if filters.centred:
        patches -= patches.mean(1, keepdim=True)
    square = patches.square().mean(1, keepdim=True)
    filters.floor.copy_(recipe.floor**2 * square.mean())
    patches /= (square + filters.floor).sqrt()
    middle = patches.mean(0)
    patches -= middle
    values, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    strength = values.clamp(min=0) / values.mean() + recipe.whitening
    whitened = directions @ torch.diag(strength.rsqrt()) @ directions.T
    rows = F.normalize(patches @ whitened, dim=1)
    dictionary = rows[torch.randperm(len(rows), generator=generator, device=maps.device)[:count]]
    for step in range(recipe.iterations):
        progress(f"{name}: finding common patches", step, recipe.iterations)
        dictionary = _nearer(dictionary, rows, generator)
    weight = (dictionary @ whitened).reshape(filters.patches.weight.shape)
    filters.offset.copy_(dictionary @ whitened @ middle)
    if filters.centred:  # so that it need not be taken out of every patch
        weight -= weight.mean((1, 2, 3), keepdim=True)
    filters.patches.weight.copy_(weight)
    some = torch.cat([filters.answers(own).float() for own in maps[:500].split(_BATCH)])
    filters.threshold.copy_(recipe.threshold * some.std((0, 2, 3)))


def _nearer(dictionary: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """One step of k-means on a sphere, where a direction and its opposite are the same."""
    short = dictionary.bfloat16()
    nearest = torch.cat([(own.bfloat16() @ short.T).abs().argmax(1) for own in rows.split(5000)])
    sign = (rows * dictionary[nearest]).sum(1, keepdim=True).sign()
    sums = torch.zeros_like(dictionary).index_add_(0, nearest, rows * sign)
    empty = torch.bincount(nearest, minlength=len(dictionary)) == 0
    drawn = torch.randint(len(rows), (int(empty.sum()),), generator=generator, device=rows.device)
    sums[empty] = rows[drawn]
    return F.normalize(sums, dim=1)


def learn_mixtures(mixtures: Mixtures, answers: Tensor, levelling: float) -> None:
    """The directions in which channels vary most, of answers [n, channels, height, width]."""
    rows = answers.flatten(2).transpose(1, 2).flatten(0, 1)
    mixtures.mean.copy_(rows.mean(0))
    mixtures.deviation.copy_(rows.std(0) + 1e-6)
    rows = (rows[:: max(1, len(rows) // _LEAST_ROWS)] - mixtures.mean) / mixtures.deviation
    values, directions = torch.linalg.eigh(rows.T @ rows / len(rows))
    out = mixtures.mix.weight.shape[0]
    strongest, values = directions.flip(1)[:, :out], values.flip(0)[:out].clamp(min=1e-6)
    mixtures.mix.weight.copy_((strongest * values**-levelling).T[:, :, None, None])


def _patches(maps: Tensor, kernel: int, count: int, generator: torch.Generator) -> Tensor:
    """Patches at random places [count, channels · kernel · kernel]."""

    def drawn(below: int) -> Tensor:
        return torch.randint(below, (count,), generator=generator, device=maps.device)

    image = drawn(len(maps))
    top, left = (drawn(side - kernel + 1) for side in maps.shape[2:])
    reach = torch.arange(kernel, device=maps.device)
    rows, columns = (start[:, None] + reach for start in (top, left))
    found = maps[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return found.permute(0, 3, 1, 2).flatten(1)


def _below(encoder: Encoder, prefixes: list[str]) -> dict[str, Tensor]:
    """What the encoder knows under these names."""
    state = encoder.state_dict()
    return {key: own for key, own in state.items() if key.startswith(tuple(prefixes))}
