"""Features of images from an encoder that has seen random images only: they cost no privacy."""

from udpfl.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtra("torch", "train") from None

from udpfl.features.encoder import Encoder, Stage
from udpfl.features.files import describe, load_encoder, save, shipped_path
from udpfl.features.images import FAMILIES, random_images
from udpfl.features.training import Recipe, train

__all__ = [
    "FAMILIES",
    "Encoder",
    "Recipe",
    "Stage",
    "describe",
    "load_encoder",
    "random_images",
    "save",
    "shipped_path",
    "train",
]
