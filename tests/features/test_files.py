"""Files of encoders: what is written comes back, and nothing else is taken for an encoder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from tests.features.toys import STAGES, TOY  # noqa: E402
from udpfl.errors import InvalidInput  # noqa: E402
from udpfl.features import (  # noqa: E402
    Encoder,
    Recipe,
    describe,
    files,
    load_encoder,
    random_images,
    save,
    shipped_path,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ABOUT = {"recipe": asdict(TOY), "log": []}


@pytest.fixture
def path(tmp_path):
    """A toy that was never trained."""
    path = tmp_path / "toy.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save(path, Encoder(STAGES), ABOUT)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rewritten(path, tensors=None, **header):
    """The file with other tensors, or other words in its header."""
    known = {"format": files.FORMAT, "licence": files.LICENCE, "about": json.dumps(ABOUT)}
    tensors = safetensors.load_file(path) | (tensors or {})
    own = {name: word for name, word in (known | header).items() if word is not None}
    path.write_bytes(safetensors.save(tensors, own))
    return path


def test_what_is_written_comes_back_within_half_precision(tmp_path):
    encoder = Encoder(STAGES)
    save(tmp_path / "toy.safetensors", encoder, ABOUT)
    found = load_encoder(tmp_path / "toy.safetensors")
    assert found.shape == STAGES
    for name, own in encoder.state_dict().items():
        assert torch.allclose(found.state_dict()[name], own, rtol=2**-11, atol=1e-7), name
        assert found.state_dict()[name].dtype == torch.float32
    assert not any(own.requires_grad for own in found.parameters())
    assert not found.training
    assert [own.name for own in tmp_path.iterdir()] == ["toy.safetensors"]


def test_a_file_says_what_it_is(path):
    about = describe(path)
    assert about["recipe"] == json.loads(json.dumps(asdict(TOY)))
    assert about["sha256"] == sha256(path)
    assert about["bytes"] == path.stat().st_size
    assert about["licence"] == "Apache-2.0"


def test_only_the_file_with_this_hash_is_taken(path, tmp_path):
    wanted = sha256(path)
    load_encoder(path, wanted.upper())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    load_encoder(path)  # a number is another one, which only the hash can tell
    with pytest.raises(
        InvalidInput, match=rf"^encoder: .*toy.*SHA-256.*not {wanted}: another file"
    ):
        load_encoder(path, wanted)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_file_that_was_cut_off_is_refused(path, kept):
    path.write_bytes(path.read_bytes()[:kept])
    for read in (load_encoder, describe):
        with pytest.raises(InvalidInput, match=r"^encoder: .*toy.* is not an encoder's file"):
            read(path)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"format": "udpfl encoder 2"}, "its format is 'udpfl encoder 2'"),
        ({"format": None}, "its format is None"),
        ({"about": "{"}, "is not an encoder's file"),
        ({"about": "{}"}, "is not an encoder's file: 'recipe'"),
        ({"about": json.dumps({**ABOUT, "recipe": {}})}, "does not hold what its header says"),
        (
            {"about": json.dumps({"recipe": {**asdict(TOY), "parts": 2}, "log": []})},
            None,  # nothing in the tensors depends on the parts
        ),
        (
            {"about": json.dumps({"recipe": {**asdict(TOY), "stages": []}, "log": []})},
            "does not hold what its header says",
        ),
    ],
)
def test_headers(path, header, match):
    rewritten(path, **header)
    if match is None:
        assert load_encoder(path).parts == 2
        return
    with pytest.raises(InvalidInput, match=rf"^encoder: .*toy.*{match}"):
        load_encoder(path)


def test_tensors_of_other_sizes_are_refused(path):
    rewritten(path, {"scale": torch.ones(3)})
    with pytest.raises(InvalidInput, match="does not hold what its header says"):
        load_encoder(path)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(path, wrong):
    rewritten(path, {"scale": torch.tensor([1.0, wrong]).half()})
    with pytest.raises(InvalidInput, match="numbers that are not finite"):
        load_encoder(path)


@pytest.mark.parametrize("wrong", [70_000.0, -70_000.0, float("nan")])
def test_what_has_no_half_is_not_written(tmp_path, wrong):
    encoder = Encoder(STAGES)
    encoder.scale[1] = wrong
    with pytest.raises(InvalidInput, match="scale has numbers that half precision cannot hold"):
        save(tmp_path / "toy.safetensors", encoder, ABOUT)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"^encoder: cannot read .*none: No such file"):
        load_encoder(tmp_path / "none")


# The one that is shipped


def test_the_shipped_encoder_is_that_of_the_default_recipe():
    about = describe(shipped_path())
    assert about["sha256"] == files.SHIPPED_SHA256
    assert about["bytes"] <= 8e6
    assert about["licence"] == "Apache-2.0"
    assert about["recipe"] == json.loads(json.dumps(asdict(Recipe())))
    encoder = load_encoder()
    assert encoder.shape == Recipe().stages
    assert encoder.features == 6912


def test_everybody_has_a_shipped_encoder_of_their_own():
    one, other = load_encoder(), load_encoder()
    one.scale[0] = 9
    assert other.scale[0] != 9
    assert load_encoder().scale[0] == other.scale[0]


def test_the_shipped_encoder_is_read_with_its_hash(monkeypatch, path):
    monkeypatch.setattr(files, "shipped_path", lambda: path)
    files._shipped.cache_clear()
    with pytest.raises(InvalidInput, match="another file"):
        load_encoder()
    files._shipped.cache_clear()


def test_the_shipped_encoder_answers_as_it_did():
    """Numbers of two random images, in single precision; others are quicker and less exact."""
    encoder, images = load_encoder(), random_images("leaves", 3, seed=11)[:2]
    found = encoder(images, mirrored=True).detach()
    wanted = torch.tensor([
        [4.186, 1.004, 8.536, -9.299, 6.074, -7.403, -4.553, -3.807],
        [-4.032, 0.184, -0.621, -0.582, -2.929, 1.089, 4.006, 2.377],
    ])  # fmt: skip
    places = [0, 100, 116, 73, 1, 13, 4608, 4675]
    assert torch.allclose(encoder.features**0.5 * found[:, places], wanted, atol=0.2)
    with torch.no_grad():
        assert torch.allclose(encoder(images, mirrored=True), found, atol=0.02)


@pytest.mark.parametrize(
    "sizes", [{"filters": 2_000_000}, {"stride": 0}, {"kernel": 1.5}, {"filters": True}]
)
def test_sizes_are_checked_before_memory_is_taken(path, sizes):
    recipe = asdict(TOY)
    recipe["stages"] = [{**recipe["stages"][0], **sizes}, *recipe["stages"][1:]]
    rewritten(path, about=json.dumps({"recipe": recipe, "log": []}))
    with pytest.raises(InvalidInput, match="does not hold what its header says"):
        load_encoder(path)


@pytest.mark.parametrize("parts", [0, -1, True, "3", None, 1000])
def test_parts_are_a_small_whole_number(path, parts):
    rewritten(path, about=json.dumps({"recipe": {**asdict(TOY), "parts": parts}, "log": []}))
    with pytest.raises(InvalidInput, match="parts"):
        load_encoder(path)


def test_what_is_no_file_is_not_read(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidInput, match="it is not a file"):
            load_encoder(other)


def test_a_header_that_writes_to_the_terminal_is_refused(path):
    rewritten(path, licence="\x1b]0;title\x07")
    with pytest.raises(InvalidInput, match="not printable"):
        describe(path)
