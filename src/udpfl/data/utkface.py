"""UTKFace: 23,705 aligned and cropped faces with age, gender and ethnicity.

Read from the compact archive `utkface_32x32_rgb.npz`, or from its public form: JPEG files whose
names begin with age_gender_ethnicity_date. Files named otherwise are left out and counted. The
labels are estimates that a person checked, not what the people said of themselves. It has no
official split. 390 pictures are exact repeats of another one, 212 of them with another age.

Options:
  target      "gender" (default) or "ethnicity", to classify; "age", to regress on: years divided
              by 116, the published upper end, a constant that learns nothing from the data
  size        pixels on each side, 32 by default; pictures in folders are reduced with a bicubic
              filter, while a compact archive has the size that its name says
  duplicates  "keep" (default), or "remove": only the first of pictures with the same pixels stays

All three labels are kept as columns to partition by.

References:
  Z. Zhang, Y. Song, H. Qi, Age Progression/Regression by Conditional Adversarial Autoencoder,
  CVPR 2017.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data import _pictures
from udpfl.data._coded import arrays, decoded
from udpfl.data._images import choice, data_set, folders, not_found, side
from udpfl.data.formats import Format, Pictures, Source, described_by, sha256
from udpfl.data.options import known
from udpfl.data.records import Array, DataSet

log = logging.getLogger(__name__)

OPTIONS = ("target", "size", "duplicates")
NAMES = {
    "gender": ("male", "female"),
    "ethnicity": ("White", "Black", "Asian", "Indian", "Others"),
}
OLDEST = 116
# Some published names have a slip after the date, such as a blank or a missing dot.
_NAME = re.compile(r"(\d{1,3})_(\d)_(\d)_\d+\D.*", re.ASCII)

SOURCE = Source(
    name="utkface",
    title="UTKFace, aligned and cropped faces",
    samples="23,705 RGB with age, gender, ethnicity, seeded split",
    licence="non-commercial research only; owners keep their copyright",
    homepage="susanqq.github.io/UTKFace",
    citation=(
        "Z. Zhang, Y. Song, H. Qi, Age Progression/Regression by Conditional Adversarial "
        "Autoencoder, CVPR 2017"
    ),
    folder="utkface",
    also=("UTKFace",),
    formats=(
        Format(
            "compact npz",  # sum computed from the compact file
            (
                (
                    sha256(
                        "utkface_32x32_rgb.npz",
                        "5c3ea0d698453f89e932b910234a62d3f538e813a200b62e9dbdcd2d8f16f396",
                    ),
                ),
            ),
        ),
        Format("JPEG files", ((Pictures("", 23_708),),)),  # three of them without full labels
    ),
    by_hand=(
        "Read the conditions on https://susanqq.github.io/UTKFace and download the archive of "
        "aligned and cropped faces, UTKFace.tar.gz (about 107 MB), from the Google Drive folder "
        "linked there. If that link is dead, the same pictures are on Kaggle as utkface-new by "
        "jangedoo.",
        "Unpack it so that the pictures lie in {folder}: mkdir -p {folder} && "
        "tar -xzf UTKFace.tar.gz --strip-components=1 -C {folder}",
    ),
    options=tuple(OPTIONS),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """Faces [3, size, size] in `directory` or a folder utkface inside it, `test` held out.

    With classes, each gives its share to the test records, which `seed` chooses.
    """
    known("utkface", options, OPTIONS)
    target = choice(options, "target", ("gender", "ethnicity", "age"))
    places = folders("utkface", directory, "utkface", "UTKFace")
    pixels, facts = _read(places, side(options, 32))
    return data_set(
        "utkface",
        pixels,
        facts["age"].astype(np.float32) / OLDEST if target == "age" else facts[target],
        seed=seed,
        test=test,
        options=options,
        class_names=NAMES.get(target),
        columns=facts,
    )


def _read(places: tuple[Path, ...], size: int) -> tuple[Array, dict[str, Array]]:
    compact = f"utkface_{size}x{size}_rgb.npz"
    facts = ("age", "gender", "ethnicity")
    for place in places:
        if (path := place / compact).is_file():
            found = arrays(
                path, path, {"coded": (3, None, size, size), **dict.fromkeys(facts, (None,))}
            )
            return decoded(found.pop("coded")), found
    for place in places:
        files = _pictures.picture_files(place) if place.is_dir() else []
        labelled = [(path, labels) for path in files if (labels := _labels(path.name))]
        if not labelled:
            continue
        if len(labelled) < len(files):
            log.warning(
                "utkface: %d of %d files are not named age_gender_ethnicity_date and are left out",
                len(files) - len(labelled),
                len(files),
            )
        paths, rows = zip(*labelled, strict=True)
        columns = np.array(rows, dtype=np.uint8).T.copy()
        pixels = _pictures.read(paths, side=size, colour="rgb", filter_="bicubic")
        return pixels, dict(zip(facts, columns, strict=True))
    wanted = f"{compact} or pictures named like 26_1_2_20170116194536117.jpg.chip.jpg"
    raise not_found("utkface", places, wanted)


def _labels(name: str) -> tuple[int, int, int] | None:
    """Age, gender and ethnicity as a file name says them, if it does."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    age, gender, ethnicity = map(int, match.groups())
    known_labels = gender < len(NAMES["gender"]) and ethnicity < len(NAMES["ethnicity"])
    return (age, gender, ethnicity) if 1 <= age <= OLDEST and known_labels else None
