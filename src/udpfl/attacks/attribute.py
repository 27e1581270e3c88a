"""Attribute inference: what somebody is, from what a network makes of them for another purpose.

The network was trained to predict one thing, such as ethnicity. The attacker sees what its last
layer is given for a record, has records of other people with the attribute in question, such as
gender, and trains a small network from the one to the other.

Guarantee: none. Differential privacy of records does not promise to prevent this. The attacker
learns how the attribute shows in such records at large, and would learn it from a network that
never saw the person; what privacy bounds is how much a person's own record changes the network.

References: Liu, Wen, He, Salem, Zhang, Backes, De Cristofaro, Fritz, Zhang, "ML-Doctor: Holistic
Risk Assessment of Inference Attacks Against Machine Learning Models", USENIX Security 2022, with
two layers in place of their one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import beta
from torch import nn

from udpfl.attacks._embeddings import embeddings
from udpfl.attacks.base import UNTRAINED, Attack, Figure, Findings, Progress
from udpfl.attacks.target import Target
from udpfl.config.section import Count, Section, Text
from udpfl.data.records import Array, Indices
from udpfl.errors import InvalidInput, Unsupported

Labels = NDArray[np.int64]
NO_PROMISE = (
    "Differential privacy of records does not promise to prevent attribute inference: how an "
    "attribute shows in a record is a property of people at large. A lower accuracy under privacy "
    "mostly says that the model itself is worse."
)
ACCURACY, F1 = "accuracy", "F1"
MAJORITY = "majority class"
_CONFIDENCE, _RESAMPLES, _FEWEST = 0.95, 1000, 20
_UNSEEN = 0.25
"""The share of the held-out records that the attacker does not train on either."""


class AttributeOptions(Section):
    """Settings of the attack."""

    attribute: Text = Field(
        default="gender", description="The column that is inferred; the model predicts another one."
    )
    records: Count = Field(
        default=5000, description="Training records of the run at most that are attacked."
    )
    auxiliary: Count = Field(
        default=5000, description="Held-out records at most that the attacker trains on."
    )
    hidden: Count = Field(default=128, description="Units of the attacker's hidden layer.")
    epochs: Count = Field(default=100, description="Passes over the attacker's records at most.")


@dataclass(frozen=True, eq=False)
class Known:
    """Records that are attacked, those that the attacker has, and those that nobody trained on."""

    attacked: Indices
    own: Indices
    unseen: Indices


class AttributeInference(Attack[AttributeOptions]):
    """Infers an attribute from what the final model makes of a record."""

    name = "attribute"
    kind = "attribute"
    what = "infers an attribute, such as gender, from what the last layer is given for a record"
    needs = "what the final model makes of a record, and other records with the attribute"
    paper = "Liu et al., ML-Doctor, 2022"
    options_type = AttributeOptions

    def find(self, target: Target, progress: Progress) -> Findings:
        options = self.options
        target.require_single_records(self.name)
        column, held_out = columns_of(target, options.attribute)
        known = chosen(target, options, self.seed)
        y, y_own, y_unseen = column[known.attacked], held_out[known.own], held_out[known.unseen]

        def inferred(network: nn.Module, stage: str) -> tuple[Labels, Labels]:
            progress(stage, 0, 1)
            x = embeddings(network, target.train_records(known.attacked)[0])
            x_own = embeddings(network, target.test_records(known.own)[0])
            x_unseen = embeddings(network, target.test_records(known.unseen)[0])
            both = infer(x_own, y_own, np.concatenate([x, x_unseen]), options, self.seed)
            return both[: len(x)], both[len(x) :]

        found, on_unseen = inferred(target.network, "inferring the attribute")
        from_nothing, _ = inferred(target.setup.network, UNTRAINED)
        most = np.full_like(y, np.bincount(y_own).argmax())
        own = (
            *figures(found, y, self.seed),
            *figures(on_unseen, y_unseen, self.seed, ", people whom nobody trained on"),
        )
        baselines = (
            *figures(most, y, self.seed, f", {MAJORITY}"),
            *figures(from_nothing, y, self.seed, f", {UNTRAINED}"),
        )
        return Findings(
            "what the last layer of the final model is given",
            f"{options.attribute} of {len(y):,} records of its training",
            own,
            baselines,
            verdict(options.attribute, own[0], baselines),
            notes=(NO_PROMISE, f"The attacker trained on {len(known.own):,} held-out records."),
        )


def columns_of(target: Target, attribute: str) -> tuple[Labels, Labels]:
    """The attribute of all training and test records, as labels 0, 1, ...

    Raises:
        Unsupported: The data has no such column, or it is what the model was trained to predict.
        InvalidInput: The column has one value only, or too many.
    """
    data = target.setup.data
    if attribute not in data.columns or attribute not in data.test_columns:
        known = ", ".join(sorted(set(data.columns) & set(data.test_columns))) or "none"
        raise Unsupported(f"{data.name} has no column {attribute!r} to infer (it has: {known})")
    train, test = np.asarray(data.columns[attribute]), np.asarray(data.test_columns[attribute])
    targets = data.train.targets
    if targets.ndim == 1 and len(np.unique(np.stack([train, targets]), axis=1).T) <= max(
        len(np.unique(train)), len(np.unique(targets))
    ):
        raise Unsupported(
            f"{attribute!r} follows from what the model was trained to predict, so nothing is "
            "inferred: train on another target, such as data.options.target = 'ethnicity'"
        )
    values, labels = np.unique(np.concatenate([train, test]), return_inverse=True)
    if not 2 <= len(values) <= 100:
        raise InvalidInput(
            "set attribute", f"{attribute!r} must have from 2 to 100 values, got {len(values)}"
        )
    labels = labels.astype(np.int64)
    return labels[: len(train)], labels[len(train) :]


def chosen(target: Target, options: AttributeOptions, seed: int) -> Known:
    """Records by their part in the attack, drawn by the seed."""
    rng = np.random.default_rng([*b"attribute", seed])
    others = rng.permutation(target.nonmembers)
    unseen, own = np.split(others, [int(_UNSEEN * len(others))])
    own = own[: options.auxiliary]
    if min(len(own), len(unseen)) < _FEWEST:
        raise Unsupported(
            f"attribute inference needs {_FEWEST} held-out records to train on, and as many to "
            f"compare with; here are {len(others)} in all"
        )
    attacked = rng.permutation(target.members)[: options.records]
    return Known(np.sort(attacked), np.sort(own), np.sort(unseen))


def infer(known: Array, labels: Labels, asked: Array, how: AttributeOptions, seed: int) -> Labels:
    """The attribute of records, by a network of two layers trained on those known."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(known)
    network = MLPClassifier(
        (how.hidden,), max_iter=how.epochs, early_stopping=True, random_state=seed
    )
    with warnings.catch_warnings():  # it may use up its epochs
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(scaler.transform(known), labels)
    found: Labels = np.asarray(network.predict(scaler.transform(asked)), dtype=np.int64)
    return found


def figures(found: Labels, true: Labels, seed: int, whose: str = "") -> tuple[Figure, Figure]:
    """Accuracy and F1 with their intervals.

    F1 is that of label 1 where there are two labels, as in the paper, and the mean over all labels
    where there are more.
    """
    right, count = int((found == true).sum()), len(true)
    tail = (1 - _CONFIDENCE) / 2
    low = float(beta.ppf(tail, right, count - right + 1)) if right else 0.0
    high = float(beta.ppf(1 - tail, right + 1, count - right)) if right < count else 1.0
    rng = np.random.default_rng([*b"resampled", seed])
    labels = int(max(found.max(), true.max())) + 1
    table = np.bincount(true * labels + found, minlength=labels**2)
    drawn = rng.multinomial(count, table / count, size=_RESAMPLES).reshape(-1, labels, labels)
    scores = np.array([f1(own) for own in drawn])
    ends = np.quantile(scores, [tail, 1 - tail])
    return (
        Figure(ACCURACY + whose, right / count, low, high),
        Figure(F1 + whose, f1(table.reshape(labels, labels)), float(ends[0]), float(ends[1])),
    )


def f1(table: NDArray[np.int64]) -> float:
    """From how often each true label (rows) was taken for each (columns); 0 for one never right."""
    hits = np.diag(table).astype(np.float64)
    both = table.sum(0) + table.sum(1)
    scores = np.divide(2 * hits, both, out=np.zeros_like(hits), where=both > 0)
    return float(scores[1] if len(table) == 2 else scores[both > 0].mean())


def verdict(attribute: str, own: Figure, baselines: tuple[Figure, ...]) -> str:
    """One sentence in plain words."""
    beside = {b.name.removeprefix(f"{ACCURACY}, "): b for b in baselines if b.name[0] == "a"}
    said = ", ".join(f"{name} {100 * b.value:.1f} %" for name, b in beside.items())
    assert own.low is not None
    most, other = beside[MAJORITY].value, beside[UNTRAINED]
    if own.low <= most:
        learned = "not surely better than the majority class"
    elif other.high is not None and own.low <= other.high:
        learned = "not surely better than from a network that was never trained"
    else:
        learned = "training made the attribute easier to tell"
    return (
        f"{attribute} is inferred with an accuracy of {100 * own.value:.1f} % ({said}): {learned}. "
        "Differential privacy does not promise to prevent this."
    )
