"""`udpfl features`: encoders that have seen random images only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from udpfl.cli._stages import ShowProgress, stages
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

features = typer.Typer(
    name="features", help="Train encoders on random images, and show them and their images."
)
_ROWS, _COLUMNS = 8, 16


@features.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@features.command()
def train(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("encoder.safetensors"),
    family: Annotated[
        str, typer.Option(help="Of random images: leaves, networks, spectra or mixed.")
    ] = "leaves",
    images: Annotated[int, typer.Option(help="Number of random images.")] = 4000,
    filters: Annotated[
        str, typer.Option(help="Filters of each stage, as 512,768.", show_default="512,768")
    ] = "",
    seed: Annotated[int, typer.Option(help="Decides the images and the first patches.")] = 0,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after the first piece that ends later; the same command goes on.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda or auto.")] = "auto",
    progress: ShowProgress = None,
) -> None:
    """Train an encoder on random images; no file is read.

    It is done in pieces, each of which is kept: the same command goes on where it was stopped.
    Without options it is the recipe of the encoder that comes with the package.

    Examples:

    udpfl features train

    udpfl features train --family mixed --filters 64,64 --out small.safetensors
    """
    from udpfl.features import describe
    from udpfl.features import train as train_encoder

    recipe = _recipe(family, images, filters, seed)
    with stages(progress) as told:
        is_done = train_encoder(recipe, out, device=_device(device), progress=told, minutes=minutes)
    if is_done:
        typer.echo(_said(describe(out), str(out)))
    else:
        typer.echo("not complete yet: the same command goes on where this one stopped")


@features.command()
def show(
    encoder: Annotated[
        Path | None,
        typer.Argument(help="An encoder's file; if left out, the one of the package."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Draw a sheet of its random images (png).", show_default=False),
    ] = None,
    filters: Annotated[
        Path | None,
        typer.Option(help="Draw the filters of its first stage (png).", show_default=False),
    ] = None,
    family: Annotated[
        str, typer.Option(help="Images of this family instead of its own.", show_default=False)
    ] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show an encoder: recipe, hash, licence and training log; draw its images and filters.

    Examples:

    udpfl features show --images images.png --filters filters.png
    """
    from udpfl.features import describe, load_encoder, random_images, shipped_path

    about = describe(encoder or shipped_path())
    if json_:
        typer.echo(json.dumps(about, indent=1))
    else:
        typer.echo(_said(about, "the encoder of the package" if encoder is None else str(encoder)))
    if images is not None:
        recipe, count = about["recipe"], _ROWS * _COLUMNS
        drawn = random_images(
            family or recipe["family"], count, size=recipe["size"], seed=recipe["seed"]
        )
        _draw("images", images, drawn)
    if filters is not None:
        first: Any = load_encoder(encoder).stages[0]
        weight = first.patches.weight[: _ROWS * _COLUMNS]
        _draw("filters", filters, (weight / weight.abs().amax((1, 2, 3), keepdim=True) + 1) / 2)


def _recipe(family: str, images: int, filters: str, seed: int) -> Any:
    from dataclasses import replace

    from udpfl.features import Recipe

    recipe = Recipe(family, images, seed=seed)
    if not filters:
        return recipe
    try:
        counts = [int(word) for word in filters.split(",")]
    except ValueError:
        raise InvalidInput("filters", f"must be numbers, as 512,768: {filters!r}") from None
    if not 1 <= len(counts) <= len(recipe.stages) or min(counts) < 1:
        raise InvalidInput("filters", f"takes 1 to {len(recipe.stages)} numbers above 0")
    last = len(counts) - 1
    own = [
        replace(
            stage,
            filters=count,
            channels=0 if number == last else min(stage.channels, 2 * count),
            features=min(stage.features, 2 * count),
        )
        for number, (stage, count) in enumerate(zip(recipe.stages, counts, strict=False))
    ]
    patches = max(recipe.patches, 100 * max(counts))
    return replace(recipe, stages=tuple(own), patches=patches)


def _device(name: str) -> str:
    from udpfl.federation.builders import choose_device

    try:
        return str(choose_device(name))
    except RuntimeError:
        raise InvalidInput("device", f"must be cpu, cuda or auto: {name!r}") from None


def _said(about: dict[str, Any], name: str) -> str:
    recipe = about["recipe"]
    seconds = sum(piece["seconds"] for piece in about["log"])
    device = about["log"][-1]["device"] if about["log"] else "an unknown device"
    filters = ", ".join(str(stage["filters"]) for stage in recipe["stages"])
    numbers = sum(stage["features"] for stage in recipe["stages"]) * recipe["parts"] ** 2
    return "\n".join([
        f"{name}: {about['bytes'] / 1e6:.1f} MB, {about['licence']}",
        f"  SHA-256   {about['sha256']}",
        f"  trained   on {recipe['images']:,} random images ({recipe['family']}, seed "
        f"{recipe['seed']}), no real one, in {seconds / 60:.1f} min on {device}",
        f"  filters   {filters}",
        f"  features  {numbers:,} of an image",
    ])  # fmt: skip


def _draw(option: str, path: Path, pictures: Tensor) -> None:
    """A sheet of pictures [n, 3, height, width] between 0 and 1."""
    from PIL import Image

    count, channels, height, width = pictures.shape
    rows = -(-count // _COLUMNS)
    sheet = pictures.new_ones(rows * _COLUMNS, channels, height + 1, width + 1)
    sheet[:count, :, :height, :width] = pictures
    sheet = sheet.view(rows, _COLUMNS, channels, height + 1, width + 1).permute(0, 3, 1, 4, 2)
    pixels = (sheet.reshape(rows * (height + 1), -1, channels) * 255).round().byte().numpy()
    larger = -(-800 // pixels.shape[1])
    pixels = pixels.repeat(larger, 0).repeat(larger, 1)
    try:
        Image.fromarray(pixels).save(path)
    except (OSError, ValueError) as error:
        raise InvalidInput(option, f"cannot write {path}: {error}") from None
