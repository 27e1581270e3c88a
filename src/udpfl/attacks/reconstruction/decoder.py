"""A separate reconstruction model: from what the model says of a record back to its picture.

The attacker has records of the same kind, asks the model about them, and trains a decoder from the
answers to the pictures. It is then tried on records that the run was trained on. A decoder that
knows nothing but the class can give the mean picture of it: that is what it has to beat.

References: Yang, Zhang, Chang, Liang, "Neural Network Inversion in Adversarial Setting via
Background Knowledge Alignment", CCS 2019.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn

from udpfl.attacks._embeddings import embeddings, require_finite
from udpfl.attacks.base import UNTRAINED, Attack, Findings, Progress, silent
from udpfl.attacks.reconstruction._figures import MEAN, Quality, beside, findings
from udpfl.attacks.reconstruction._pictures import Scale, grid
from udpfl.attacks.reconstruction.metrics import Floats
from udpfl.attacks.target import Target
from udpfl.config.section import Count, Positive, Section
from udpfl.data.records import Array
from udpfl.errors import Unsupported

CLASS_MEAN = "mean picture of the predicted class"
_BATCH = 128
_CPU = torch.device("cpu")
_FEWEST = 20
_CONSTANT = 1e-5
"""Below it, beside its size, a number that the decoder is given counts as constant."""


class DecoderOptions(Section):
    """Settings of the decoder."""

    sees: Literal["log-softmax", "embedding"] = Field(
        default="log-softmax",
        description="What the decoder gets: the answers of the model, or what its last layer gets.",
    )
    auxiliary: Count = Field(
        default=5000, description="Held-out records at most that the attacker trains on."
    )
    records: Count = Field(
        default=1000, description="Training records of the run at most that are reconstructed."
    )
    epochs: Count = Field(default=50, description="Passes over the auxiliary records.")
    width: Count = Field(default=128, description="Channels of the first layer of the decoder.")
    learning_rate: Positive = Field(default=1e-3, description="Of Adam.")


class Decoder(nn.Module):
    """A dense layer, then three transposed convolutions that double the side, cut to the shape.

    Args:
        features: Numbers that it is given.
        shape: Channels, height and width of what it gives.
        width: Channels of its first layer.
    """

    def __init__(self, features: int, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.shape = shape
        self.first = (width, -(-shape[1] // 8), -(-shape[2] // 8))
        self.dense = nn.Linear(features, int(np.prod(self.first)))
        sizes = (width, max(1, width // 2), max(1, width // 4))
        layers: list[nn.Module] = []
        for before, after in zip(sizes, (*sizes[1:], shape[0]), strict=True):
            layers += [nn.BatchNorm2d(before), nn.ReLU()]
            layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1)]
        self.rest = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Pictures from 0 to 1."""
        pictures: Tensor = self.rest(self.dense(features).unflatten(1, self.first)).sigmoid()
        return pictures[..., : self.shape[1], : self.shape[2]]


class DecoderAttack(Attack[DecoderOptions]):
    """Trains a decoder from what the final model says of pictures to the pictures."""

    name = "decoder"
    kind = "reconstruction"
    what = "trains a model that turns what the final model says of a record into its picture"
    needs = "the final model, and records of the same kind"
    paper = "Yang et al., Neural Network Inversion in Adversarial Setting, 2019"
    options_type = DecoderOptions

    def find(self, target: Target, progress: Progress) -> Findings:
        options = self.options
        target.require_classes(self.name)
        scale = Scale.of(target, self.name)
        rng = np.random.default_rng([*b"decoder", self.seed])
        known = rng.permutation(target.nonmembers)[: options.auxiliary]
        victims = rng.permutation(target.members)[: options.records]
        if len(known) < _FEWEST:
            raise Unsupported(f"a decoder needs {_FEWEST} held-out records to train on")
        (x, _), (x_victims, _) = target.test_records(known), target.train_records(victims)
        pictures, originals = scale.pixels(x), scale.pixels(x_victims)

        def decoded(network: nn.Module, stage: str) -> Floats:
            seen, asked = (seen_of(network, own, options.sees) for own in (x, x_victims))
            device = target.setup.device
            return decode(seen, asked, pictures, options, self.seed, progress, stage, device)

        found = decoded(target.network, "training the decoder")
        from_untrained = decoded(target.setup.network, UNTRAINED)
        by_class = predicted_means(target.network, x, pictures, x_victims)
        others = {CLASS_MEAN: by_class, MEAN: pictures.mean(0), UNTRAINED: from_untrained}
        rows = [("original", originals), ("decoded", found), ("mean of the class", by_class)]
        return findings(
            "the final model",
            f"{len(victims):,} records of its training",
            Quality.of(found, originals).figures(),
            beside(originals, others),
            said=f"decoder on the {options.sees} of the final model",
            notes=(
                f"The decoder was trained on {len(known):,} held-out records.",
                "What it gives is what records with such an answer look like in general, which "
                "privacy of single records does not promise to hide.",
                "The pictures show records of clients: keep this page as you keep the data.",
            ),
            picture=grid("Records and what the decoder makes of their answers", rows),
        )


def seen_of(network: nn.Module, inputs: Tensor, sees: str) -> Array:
    """What the decoder is given of records [n, features]."""
    if sees == "embedding":
        return embeddings(network, inputs)
    with torch.no_grad():
        scores = torch.cat([network.cpu().eval()(own) for own in inputs.split(1024)])
    found: Array = scores.log_softmax(1).numpy()
    require_finite(found)
    return found


def predicted_means(network: nn.Module, inputs: Tensor, pictures: Floats, of: Tensor) -> Floats:
    """The mean of the attacker's pictures that the model puts into the same class as each record;
    the mean of all where there is none."""
    own, wanted = (seen_of(network, each, "log-softmax").argmax(1) for each in (inputs, of))
    means = {label: pictures[own == label].mean(0) for label in np.unique(own)}
    everything = pictures.mean(0)
    return np.stack([means.get(label, everything) for label in wanted])


def decode(
    known: Array,
    asked: Array,
    pictures: Floats,
    how: DecoderOptions,
    seed: int,
    progress: Progress = silent,
    stage: str = "training the decoder",
    device: torch.device = _CPU,
) -> Floats:
    """Pictures of the records that were asked about, by a decoder trained on those known.

    Args:
        known: What the model says of the attacker's own records [n, features].
        asked: What it says of others [m, features].
        pictures: The attacker's own records, from 0 to 1 [n, ...].
        how: Settings.
        seed: Of its weights, and of the order of records.
        progress: Told of every epoch.
        stage: What this is called.
        device: Where the decoder is trained.
    """
    centre, spread = known.mean(0), known.std(0)
    spread = np.where(spread > _CONSTANT * (1 + np.abs(centre)), spread, 1)  # rounding is no answer
    features, wanted = (
        torch.from_numpy((own - centre) / spread).float().to(device) for own in (known, asked)
    )
    originals = torch.from_numpy(pictures).float().to(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = Decoder(features.shape[1], tuple(originals.shape[1:]), how.width).to(device)
        descent = torch.optim.Adam(decoder.parameters(), how.learning_rate)
        for epoch in range(how.epochs):
            progress(stage, epoch, how.epochs)
            for rows in torch.randperm(len(features)).split(_BATCH):
                if len(rows) < 2:  # batch normalisation needs two
                    continue
                loss = F.mse_loss(decoder(features[rows]), originals[rows])
                descent.zero_grad()
                loss.backward()
                descent.step()
    decoder.eval()
    with torch.no_grad():
        found = torch.cat([decoder(own) for own in wanted.split(1024)])
    decoded: Floats = found.double().cpu().numpy()
    return decoded
