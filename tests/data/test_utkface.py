"""UTKFace in both formats: names, labels, repeats and sizes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import bytes_of, coded, everything, npz
from tests.data.samples import real, refused, rng
from udpfl.data import load

FACES = {"age": [26, 1, 116, 40, 8], "gender": [1, 0, 1, 0, 0], "ethnicity": [2, 4, 0, 1, 3]}


@cache
def faces() -> np.ndarray:
    pixels = rng(5).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    pixels[1] = pixels[2]
    return pixels


def face_names() -> list[str]:
    facts = zip(FACES["age"], FACES["gender"], FACES["ethnicity"], strict=True)
    dates = ("2017011619453{}.jpg.chip.png", "2017{} .jpg.chip.png", "2017{}jpg.chip.png")
    return [
        f"{age}_{gender}_{ethnicity}_{dates[i % 3].format(i)}"
        for i, (age, gender, ethnicity) in enumerate(facts)
    ]


def write_faces(folder: Path) -> list[int]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in zip(face_names(), faces(), strict=True):
        Image.fromarray(picture.transpose(1, 2, 0)).save(folder / name)
    return sorted(range(5), key=lambda i: face_names()[i])


@pytest.mark.parametrize("folder", ["", "utkface", "utkface/UTKFace", "UTKFace"])
@pytest.mark.parametrize("target", ["gender", "ethnicity", "age"])
def test_utkface_is_the_same_in_both_formats(tmp_path, folder, target):
    order = write_faces(tmp_path / "b" / folder)
    facts = {name: np.array(values, np.uint8)[order] for name, values in FACES.items()}
    npz(tmp_path / "a" / "utkface" / "utkface_32x32_rgb.npz", coded=coded(faces()[order]), **facts)
    asked = {"seed": 1, "options": {"target": target}}
    both = [load("utkface", directory=tmp_path / place, **asked) for place in "ab"]
    for data in both:
        positions, inputs, targets = everything(data)
        assert positions.tolist() == [*range(5)]
        assert np.array_equal(bytes_of(inputs), faces()[order])
        assert data.input_shape == (3, 32, 32)
        for name, values in facts.items():
            assert np.array_equal(data.columns[name], values[data.train.positions])
        if target == "age":
            assert (data.task, data.classes, data.class_names) == ("regression", None, None)
            assert targets.shape == (5, 1)
            assert np.allclose(targets[:, 0] * 116, facts["age"], atol=1e-4)
        else:
            assert np.array_equal(targets, facts[target])
            assert data.classes == len(data.class_names) == {"gender": 2, "ethnicity": 5}[target]
    assert both[0].train.fingerprint() == both[1].train.fingerprint()


def test_faces_with_other_names_are_left_out_and_counted(tmp_path, caplog):
    write_faces(tmp_path)
    wrong = [
        "61_1_20170109142408075.jpg.chip.jpg",  # as published: no ethnicity
        "0_0_0_20170109142408075.jpg",
        "117_0_0_20170109142408075.jpg",
        "30_2_0_20170109142408075.jpg",
        "30_0_5_20170109142408075.jpg",
        "-3_0_1_20170109142408075.jpg",
        "holiday.png",
    ]
    for name in wrong:
        (tmp_path / name).write_bytes(b"is not even opened")
    data = load("utkface", directory=tmp_path)
    assert len(data.train) + len(data.test) == 5
    assert "7 of 12 files are not named age_gender_ethnicity_date" in caplog.text


def test_repeated_faces_may_have_other_labels(tmp_path, caplog):
    order = write_faces(tmp_path)
    data = load("utkface", directory=tmp_path, options={"duplicates": "remove"})
    assert "1 of 5 pictures are exact copies of an earlier one" in caplog.text
    assert "1 of them have another target" in caplog.text
    positions, inputs, _ = everything(data)
    repeat = max(order.index(1), order.index(2))
    assert repeat == 1  # not the last, so that what follows it moves up
    assert positions.tolist() == [i for i in range(5) if i != repeat]
    for name, values in FACES.items():
        expected = np.array(values)[order][data.train.positions]
        assert np.array_equal(data.columns[name], expected)
    assert len(inputs) == 4


def test_faces_are_reduced_and_refused(tmp_path):
    with refused("utkface_32x32_rgb.npz or pictures named like .*udpfl data list"):
        load("utkface", directory=tmp_path)
    write_faces(tmp_path)
    assert load("utkface", directory=tmp_path, options={"size": 16}).input_shape == (3, 16, 16)
    with refused("must be gender, ethnicity or age, got 'race'", "data.options.target"):
        load("utkface", directory=tmp_path, options={"target": "race"})
    with refused("is not an option of utkface", "data.options.scale"):
        load("utkface", directory=tmp_path, options={"scale": 2})
    with refused("none to test on", "data.test"):
        load("utkface", directory=tmp_path, test=0.01)


@pytest.mark.slow
def test_the_real_utkface(caplog):
    folder = real("utkface")
    data = load("utkface", directory=folder)
    counts = np.bincount(data.train.targets) + np.bincount(data.test.targets)
    assert counts.tolist() == [12_391, 11_314]
    data = load("utkface", directory=folder, options={"target": "ethnicity"})
    counts = np.bincount(data.train.targets) + np.bincount(data.test.targets)
    assert counts.tolist() == [10_078, 4_526, 3_434, 3_975, 1_692]
    asked = {"target": "age", "duplicates": "remove"}
    data = load("utkface", directory=folder, options=asked)
    assert "390 of 23705 pictures" in caplog.text
    _, _, ages = everything(data)
    assert len(ages) == 23_315
    assert (ages.min() * 116, ages.max()) == (pytest.approx(1), 1)
