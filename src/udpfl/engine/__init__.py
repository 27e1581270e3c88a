"""Clipped, noised training of many lanes at once. Imports only numpy, scipy and torch."""

from udpfl.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtra("torch", "train") from None

from udpfl.engine.clipping import BallClipper, Clipper, NormClipper, Unclipped
from udpfl.engine.lanes import LaneModel, Loss
from udpfl.engine.noise import MechanismNoiser, Noiseless, Noiser
from udpfl.engine.precision import Precision
from udpfl.engine.randomising import RandomisingNoiser
from udpfl.engine.randomness import Entropy, Key, Keyed, PrivateStream
from udpfl.engine.training import Correct, Lanes, Limits, Trained, train_round

__all__ = [
    "BallClipper",
    "Clipper",
    "Correct",
    "Entropy",
    "Key",
    "Keyed",
    "LaneModel",
    "Lanes",
    "Limits",
    "Loss",
    "MechanismNoiser",
    "Noiseless",
    "Noiser",
    "NormClipper",
    "Precision",
    "PrivateStream",
    "RandomisingNoiser",
    "Trained",
    "Unclipped",
    "train_round",
]
