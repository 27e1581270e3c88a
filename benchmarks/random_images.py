"""Which random images make the better encoder: each family by itself, with the same recipe.

    python benchmarks/random_images.py --data-dir DIR [--filters 128 128] [--seeds 0 1]

Every encoder sees as many images and has as many filters. Accuracies are those of the private
linear layer on CIFAR-10 at ε = 2 and ε = 8, on a tenth of the training records: the test set is not
looked at.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from accuracy import CASES, markdown, measured
from machine import ROOT, described, write

from udpfl.features import FAMILIES, Recipe, describe, train
from udpfl.features.encoder import STAGES

OUT = ROOT / "results" / "random-images.json"


def recipe(family: str, filters: list[int], images: int) -> Recipe:
    """The recipe of the package with fewer filters."""
    stages = tuple(
        replace(stage, filters=count, features=min(stage.features, 2 * count))
        for stage, count in zip(STAGES, filters, strict=True)
    )
    return Recipe(family, images, stages=stages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--filters", type=int, nargs=2, default=[128, 128])
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    found = {}
    for family in asked.families:
        with tempfile.TemporaryDirectory() as folder:
            path, began = Path(folder) / "encoder.safetensors", time.perf_counter()
            train(recipe(family, asked.filters, asked.images), path)
            seconds = round(time.perf_counter() - began, 1)
            own = [
                f"model.options.encoder={path}",
                f"model.options.sha256={describe(path)['sha256']}",
            ]
            rows = measured(
                CASES["cifar10"], asked.data_dir, asked.seeds, ["gaussian"], own, validates=True
            )
        found[family] = {"seconds_of_training": seconds, "rows": rows}
        print(f"{family} (encoder in {seconds} s)", markdown(rows), sep="\n", flush=True)
        about = {"filters": asked.filters, "images": asked.images}
        about |= {"machine": described(torch.get_num_threads())}
        write(asked.out, {**about, "families": found})


if __name__ == "__main__":
    main()
