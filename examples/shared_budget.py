"""Several runs on one budget; a run that it does not hold is refused before anything is trained:

python examples/shared_budget.py
"""

import tempfile
from pathlib import Path

import numpy as np

import udpfl

rng = np.random.default_rng(0)
labels = rng.integers(2, size=2000)
inputs = rng.normal(size=(2000, 10)) + 0.6 * labels[:, None]
path = Path(tempfile.mkdtemp()) / "budget.sqlite"


def train(exhausted: str = "refuse") -> None:
    """One run of epsilon 1, charged to the shared ledger."""
    result = udpfl.run(
        {"data": {"clients": 4, "declared_sizes": 400}},
        model="logistic",
        data=(inputs, labels),
        privacy={"epsilon": 1, "ledger": str(path), "exhausted": exhausted},
        training={"rounds": 10, "sampling_rate": 0.2, "learning_rate": 0.5},
    )
    print(f"rounds {len(result.metrics)}, accuracy {result.accuracy}, in all {result.privacy}")


train()
with udpfl.Ledger(path) as ledger:  # in a shell: udpfl budget set LEDGER all --epsilon 1.75 ...
    budget = udpfl.Budget(epsilon=1.75, delta=1e-5)
    ledger.set_budgets([own.id for own in ledger.accounts()], budget, reason="a second study")
train()  # costs less than another 1, because releases are composed and not their epsilons
try:
    train()
except udpfl.BudgetExceeded as error:
    print(f"refused: {error}")
train(exhausted="fit")  # the same rounds, with as much noise as what is left asks for
