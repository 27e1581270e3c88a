"""The table in docs/mathematics.md: noise per mechanism, budget and dimension, as Markdown.

.venv/bin/python benchmarks/noise_table.py
"""

from __future__ import annotations

from udpfl import Sensitivity, Setting, calibrate

COLUMNS = [
    ("Gaussian, any d", "gaussian", 26_010),
    ("Laplace, d = 1", "laplace", 1),
    ("Laplace, d = 10", "laplace", 10),
    ("Laplace, d = 26,010", "laplace", 26_010),
    ("Staircase, d = 1", "staircase", 1),
    ("Staircase, d = 26,010", "staircase", 26_010),
]


def noise(name: str, epsilon: float, dimension: int, accountant: str) -> float:
    sensitivity = Sensitivity(1.0, "l2", dimension)
    goal = Setting(epsilon, 1e-5, 300, sensitivity, 0.05, accountant=accountant)
    return calibrate(name, goal).mechanism.noise_std


def main() -> None:
    print("| ε | " + " | ".join(title for title, _, _ in COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for epsilon in (2, 4, 6, 8):
        cells = []
        for _, name, dimension in COLUMNS:
            cell = f"{noise(name, epsilon, dimension, 'rdp'):.3f}"
            if name == "gaussian" or dimension == 1:
                cell += f" ({noise(name, epsilon, dimension, 'pld'):.3f})"
            cells.append(cell)
        print(f"| {epsilon} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
