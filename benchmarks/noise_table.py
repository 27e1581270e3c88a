"""The tables of noise in docs/mathematics.md, as Markdown: per mechanism, budget and dimension, by
the paper's own accounting as well, and per number of local epochs.

.venv/bin/python benchmarks/noise_table.py
"""

from __future__ import annotations

from udpfl import Release, Repeated, Sensitivity, Setting, calibrate
from udpfl.accounting.events import Event, message_of
from udpfl.mechanisms import Mechanism

DELTA, RATE, EPSILONS = 1e-5, 0.05, (2, 4, 6, 8)
WIDE = Sensitivity(1.0, "l2", 26_010)
COLUMNS = [
    ("Gaussian, any d", "gaussian", 26_010),
    ("Laplace, d = 1", "laplace", 1),
    ("Laplace, d = 10", "laplace", 10),
    ("Laplace, d = 26,010", "laplace", 26_010),
    ("Staircase, d = 1", "staircase", 1),
    ("Staircase, d = 26,010", "staircase", 26_010),
]
NOMINAL = [(name, by) for by in ("rdp", "paper") for name in ("Gaussian", "Laplace", "Staircase")]


def noise(name: str, epsilon: float, dimension: int, accountant: str) -> float:
    sensitivity = Sensitivity(1.0, "l2", dimension)
    goal = Setting(epsilon, DELTA, 300, sensitivity, RATE, accountant=accountant)
    return calibrate(name, goal).mechanism.noise_std


def guaranteed() -> None:
    """Section 3.4."""
    head([title for title, _, _ in COLUMNS])
    for epsilon in EPSILONS:
        cells = []
        for _, name, dimension in COLUMNS:
            cell = f"{noise(name, epsilon, dimension, 'rdp'):.3f}"
            if name == "gaussian" or dimension == 1:
                cell += f" ({noise(name, epsilon, dimension, 'pld'):.3f})"
            cells.append(cell)
        print(f"| {epsilon} | " + " | ".join(cells) + " |")


def nominal() -> None:
    """Section 3.5: standard deviation, and mean |noise| in brackets."""
    head([f"{name}, {by}" for name, by in NOMINAL])
    for epsilon in EPSILONS:
        cells = []
        for name, by in NOMINAL:
            goal = Setting(epsilon, DELTA, 300, WIDE, RATE, accountant=by, accounting="scalar")
            found = calibrate(name.lower(), goal).mechanism
            cells.append(f"{found.noise_std:.3f} ({found.mean_abs:.3f})")
        print(f"| {epsilon} | " + " | ".join(cells) + " |")


def shuffled() -> None:
    """Section 7: Staircase noise for 150 releases, nominally, with the paper's lemma."""
    head(["rdp", "paper"], first="releases in a message")
    for clients, releases in ((0, 1), (10, 1), (10, 2), (10, 5), (10, 10), (10, 150)):
        cells = [f"{lemma_noise(clients, releases, by):.3f}" for by in ("rdp", "paper")]
        title = str(releases) if clients else "not shuffled"
        print(f"| {title} | " + " | ".join(cells) + " |")


def lemma_noise(clients: int, releases: int, accountant: str) -> float:
    def pays_for(mechanism: Mechanism) -> Event:
        return Repeated(message_of(Release(mechanism, WIDE), RATE, clients, releases), 150)

    goal = Setting(
        2.0, DELTA, 150, WIDE, RATE, "record", accountant, "scalar", pays_for
    )  # fmt: skip
    return calibrate("staircase", goal).mechanism.noise_std


ROUNDS = 150
EPOCHS = [(1, 1), (2, 1), (2, 2), (5, 1), (5, 5)]
"""In a round, and those that look at the same sample."""


def epochs() -> None:
    """Section 4.1: Gaussian noise by rdp, and by pld in brackets."""
    titles = [
        f"{count} epochs, a sample per {'round' if passes > 1 else 'epoch'}"
        for count, passes in EPOCHS[1:]
    ]
    head(["1 epoch", *titles])
    for epsilon in EPSILONS:
        cells = [
            f"{epochs_noise(epsilon, *own, 'rdp'):.3f} ({epochs_noise(epsilon, *own, 'pld'):.3f})"
            for own in EPOCHS
        ]
        print(f"| {epsilon} | " + " | ".join(cells) + " |")


def epochs_noise(epsilon: float, count: int, passes: int, accountant: str) -> float:
    sensitivity, samples = Sensitivity(1.0), ROUNDS * count // passes

    def pays_for(mechanism: Mechanism) -> Event:
        message = message_of(Release(mechanism, sensitivity), RATE, passes=passes)
        return Repeated(message, samples)

    goal = Setting(
        epsilon, DELTA, samples, sensitivity, RATE, accountant=accountant, pays_for=pays_for
    )  # fmt: skip
    return calibrate("gaussian", goal).mechanism.noise_std


def head(titles: list[str], first: str = "ε") -> None:
    print(f"\n| {first} | " + " | ".join(titles) + " |")
    print("|---" * (len(titles) + 1) + "|")


if __name__ == "__main__":
    guaranteed()
    nominal()
    shuffled()
    epochs()
