"""Which settings do not go together; asked before anything is planned."""

from __future__ import annotations

from collections.abc import Iterator

from udpfl.algorithms import Algorithm
from udpfl.config import Config
from udpfl.config.section import refusal
from udpfl.data.records import Task
from udpfl.errors import InvalidInput, Unsupported

Problems = Iterator[tuple[str, str]]


def check_combination(config: Config, algorithm: Algorithm) -> None:
    """Refuse a method with settings that it cannot keep its promise with, all of them at once."""
    if problems := list(_problems(config, algorithm)):
        raise refusal(problems)
    if algorithm.trusts_server and algorithm.trainings != 1:
        raise Unsupported(
            f"{config.training.algorithm} trains {algorithm.trainings} times in a round, but the "
            "noise is for one training"
        )


def _problems(config: Config, algorithm: Algorithm) -> Problems:
    """The keys that are wrong, and why."""
    yield from _trust_problems(config, algorithm)
    if config.training.penalty and not algorithm.sends_update:
        yield (
            "training.penalty",
            f"{config.training.algorithm} sends no updates, so there is nothing to pull to",
        )
    yield from _shuffle_problems(config, algorithm)
    yield from _step_problems(config, algorithm)


def _step_problems(config: Config, algorithm: Algorithm) -> Problems:
    """Rounds that are not alike where a method shares out the steps over them."""
    if not algorithm.shares_steps:
        return
    name, privacy = config.training.algorithm, config.privacy
    if privacy.pace != "uniform":
        yield (
            "privacy.pace",
            f"{name} shares out the local steps over the rounds, so that all of them need the same "
            f'noise: set it to "uniform"',
        )
    if privacy.clip_quantile is not None:
        yield (
            "privacy.clip_quantile",
            f"{name} shares out the local steps over the rounds, but a clip that adapts is planned "
            f"for rounds that are alike",
        )
    training = config.training
    if training.batches * training.passes > 1:
        yield (
            "training.batches" if training.batches > 1 else "training.local_epochs",
            f"{name} shares out the local steps over the rounds, one by one, but a sample that is "
            "split into batches or used in several epochs needs all its steps in one round",
        )
    if training.shuffle and privacy.accounting == "scalar":
        yield (
            "training.shuffle",
            f"{name} shares out the local steps over the rounds, but the paper's lemma on "
            "shuffling is applied to messages that are alike in all rounds: leave it out, or set "
            'privacy.accounting = "vector"',
        )


def check_target(config: Config, task: Task) -> None:
    """Refuse a target that no model of this task is measured by."""
    other = {"accuracy"} if task == "regression" else {"mae", "mse", "rmse"}
    if wrong := sorted(other & (config.training.target or {}).keys()):
        fitting = "loss, mae, mse or rmse" if task == "regression" else "accuracy or loss"
        raise InvalidInput(
            "training.target", f"{wrong[0]} is not measured for {task}: name {fitting}"
        )


def _trust_problems(config: Config, algorithm: Algorithm) -> Problems:
    """Settings under which a trusted server would not keep what it promises."""
    if not algorithm.trusts_server:
        return
    name = config.training.algorithm
    if config.privacy.enabled and config.privacy.unit != "client":
        yield "privacy.unit", f'{name} hides whole clients: set it to "client"'
    if config.privacy.pace == "plateau":
        yield (
            "privacy.pace",
            f'with {name} the server adds the noise, but with "plateau" every client chooses how '
            "much its own budget needs: choose another pace",
        )
    for key in ("epsilon", "delta", "mechanism", "clip", "reference"):
        if isinstance(getattr(config.privacy, key), list):
            yield (
                f"privacy.{key}",
                f"{name} adds one noise to the sum of all updates: give one value for all clients",
            )
    if config.training.clients_per_round is not None:
        yield (
            "training.clients_per_round",
            f"with {name} clients decide in secret whether they take part: leave this out; an "
            "option of the method (training.options) sets how often they do",
        )
    if config.record_updates:
        yield (
            "record_updates",
            f"with {name} the updates of clients have no noise, so they must not be kept",
        )


def _shuffle_problems(config: Config, algorithm: Algorithm) -> Problems:
    """What cannot be done without knowing who sent which message."""
    if not config.training.shuffle:
        return
    if algorithm.trusts_server:
        yield (
            "training.shuffle",
            f"with {config.training.algorithm} clients send updates without noise to a trusted "
            "server: a shuffler would see them too and hide nothing from that server",
        )
    privacy = config.privacy
    nominal = privacy.accounting == "scalar"
    if nominal and privacy.accountant == "pld":
        yield (
            "privacy.accountant",
            "the paper's lemma on shuffling is about Rényi divergences, which pld does not use: "
            'set it to "rdp", "best" or "paper"',
        )
