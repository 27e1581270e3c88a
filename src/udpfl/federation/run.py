"""`run`: one run, each of its questions answered by its own clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from udpfl.config import Config
from udpfl.engine import Loss
from udpfl.federation._course import course
from udpfl.federation._opening import read_arguments
from udpfl.federation._questions import answered
from udpfl.federation.observers import Observer
from udpfl.federation.protection import Protection
from udpfl.federation.result import Run


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    *,
    model: nn.Module | Mapping[str, Any] | str | None = None,
    data: Any = None,
    test: Any = None,
    loss: Loss | None = None,
    resume: str | Path | None = None,
    observers: Sequence[Observer] = (),
    protection: Protection | None = None,
    **sections: Any,
) -> Run:
    """Train one model over many clients, each within its own privacy budget.

    Args:
        config: A file, a mapping or a `Config`; the embedded default if left out.
        model: Any `nn.Module`, the name of a model, or a section of settings.
        data: Anything that `udpfl.data.as_dataset` takes, or a section of settings.
        test: The test records, in the same forms; a split of the data if left out.
        loss: Gives one number per sample.
        resume: A run folder to go on with; code that it names has to be trusted (`udpfl.plugins`).
        observers: See every released message and every round's model.
        protection: Replaces clipping and noise, for audits: nothing is claimed for such a run.
        **sections: Settings on top of `config`, such as `privacy={"epsilon": 2}` or `seed=1`.

    Returns:
        The trained model, each client's statement, the metrics, and where they are kept.

    Raises:
        InvalidInput: A setting is wrong, or a run cannot be resumed as it was begun.
        Infeasible, Unsupported: No noise keeps a budget, or no accounting is known.
        BudgetExceeded: A shared ledger has not enough left; nothing was trained then.
        LedgerError: The ledger is missing, not sound, or not the one of this run.
        Interrupted: The run was asked to stop; it can be resumed.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> x = np.eye(4).repeat(20, 0)
        >>> settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "threads": 1}
        >>> udpfl.run(settings, data=(x, x.argmax(1)), model="logistic").privacy.epsilon <= 8
        True
    """
    asked = read_arguments(config, resume, model, data, sections)
    return answered(course(asked, test, loss, observers, protection))
