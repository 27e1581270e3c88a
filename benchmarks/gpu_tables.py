"""Tables of what was measured on a GPU, and its roofline; every number is in results/gpu.json.

python benchmarks/gpu_tables.py     results/gpu.json to .md, docs/images/gpu-roofline.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from gpu_works import Work, least_bytes, median
from machine import RESULTS, ROOT
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from tables import rows

Report = dict[str, Any]
_SHOWN = {"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16"}


def tables(report: Report) -> str:
    """All of them, without those that nothing was measured for."""
    parts = [rounds_table(report), stored_table(report), clients_table(report),
             paper_table(report), flute_table(report)]  # fmt: skip
    note = "Toys, to see that the benchmark works: these times mean nothing.\n\n"
    return (note if report.get("quick") else "") + "\n".join(own for own in parts if own)


def rounds_table(report: Report) -> str:
    """Medians, and multiples of the engine with Gaussian noise in the same precision."""
    text = []
    for own in report.get("works", []):
        medians = {name: median(values) for name, values in own["seconds"].items()}
        used = {name.rsplit(", ", 1)[1] for name in medians}
        shown = [name for name in _SHOWN if name in used]
        body = []
        for name in dict.fromkeys(name.rsplit(", ", 1)[0] for name in medians):
            cells = []
            for precision in shown:
                seconds = medians.get(f"{name}, {precision}")
                reference = medians.get(f"udpfl engine, gaussian, {precision}")
                cells.append("" if seconds is None else f"{seconds:.3f}")
                both = seconds is not None and reference is not None
                cells.append(f"{seconds / reference:.2f}" if both else "")
            body.append([name, *cells])
        least = [f"{own['floor'][name]:.3f}" if name in own["floor"] else "" for name in shown]
        body.append(["arithmetic alone", *(cell for own in least for cell in (own, ""))])
        head = [f"{_SHOWN[name]}, s" for name in shown]
        text.append(
            rows([own["work"]["name"], *(cell for name in head for cell in (name, "×"))], body)
        )
    return "\n".join(text)


def stored_table(report: Report) -> str:
    """What runs store in a round, and how long that takes of it."""
    body = [
        [
            own["work"]["name"], name, f"{median(own['seconds'][name]):.3f}",
            f"{more['bytes'] / 1e6:.1f}", f"{more['seconds']:.3f}",
            f"{median(own['seconds'][name]) - more['seconds']:.3f}",
        ]
        for own in report.get("works", [])
        for name, more in own.get("stored", {}).items()
    ]  # fmt: skip
    head = ["work", "", "s a round", "MB written", "s of storage", "s without"]
    return rows(head, body) if body else ""


def clients_table(report: Report) -> str:
    """Rounds of two steps by the number of clients."""
    found = []
    for own in report.get("works", []):
        work, seconds = own["work"], own["seconds"]
        run = seconds.get("udpfl run, gaussian, float32")
        alone = seconds.get("udpfl engine, gaussian, float32")
        is_one = work["model"].startswith("cnn") and work["steps"] == 2 and "stored" in own
        if is_one and run and alone:
            found.append((work["clients"], median(run), median(alone)))
    body = [
        [f"{count:,}", f"{run:.3f}", f"{alone:.3f}", f"{1000 * (run - alone) / count:.2f}"]
        for count, run, alone in sorted(found)
    ]
    head = ["clients × 2 steps", "udpfl run, s", "engine, s", "the rest, ms a client"]
    return rows(head, body) if len(body) > 1 else ""


def paper_table(report: Report) -> str:
    """Whole runs beside the paper's."""
    body = [
        [name, f"{own['seconds']:.2f}", f"{own['iteration']:.4f}",
         f"{own['paper']:,.2f}" if own["paper"] else ""]
        for name, own in report.get("paper", {}).items()
    ]  # fmt: skip
    head = ["iterations of the paper's table", "whole run, s", "one iteration, s", "paper, s"]
    return rows(head, body) if body else ""


def flute_table(report: Report) -> str:
    """Whole private runs beside what FLUTE publishes without privacy, on several GPUs."""
    body = [
        [f"{name}, {own['rounds']:,} rounds × {own['clients_per_round']} of "
         f"{own['population']:,} clients", f"{own['seconds']:.1f}", f"{own['published']:.0f}"]
        for name, own in report.get("flute", {}).items()
    ]  # fmt: skip
    head = ["FLUTE's simulations", "udpfl run, private, s", "FLUTE, not private, s"]
    return rows(head, body) if body else ""


_MARKS = {
    "udpfl engine, gaussian": ("o", "UDP-FL, Gaussian noise"),
    "udpfl engine, not private": ("s", "UDP-FL, not private"),
    "plain PyTorch loop, not private": ("x", "plain PyTorch, not private"),
    "Opacus hooks": ("^", "Opacus hooks"),
}
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def roofline(report: Report, path: Path) -> None:
    """Attained operations a second against operations for every byte that has to be moved.

    Roofs are measured: the rate of one large product, and of a copy, where that was measured.
    """
    works = [own for own in report["works"] if own["floor"].get("flops")]
    shown = [name for name in _SHOWN if any(name in own["floor"] for own in works)]
    figure, sides = plt.subplots(1, len(shown), figsize=(4.6 * len(shown), 4.8), squeeze=False)
    for side, precision in zip(sides[0], shown, strict=True):
        side.set(xscale="log", yscale="log", xlim=(10, 1e4), ylim=(0.1, 1e3))
        side.set(title=_SHOWN[precision], xlabel="operations for every byte that has to be moved")
        side.grid(alpha=0.3)
        for colour, own in zip(_COLOURS, works, strict=False):
            intensity = own["floor"]["flops"] / least_bytes(Work(**own["work"]))
            for name, (mark, _) in _MARKS.items():
                if seconds := own["seconds"].get(f"{name}, {precision}"):
                    rate = own["floor"]["flops"] / median(seconds) / 1e12
                    side.plot(intensity, rate, mark, color=colour, fillstyle="none")
        floors = [own["floor"] for own in works if precision in own["floor"]]
        peak = max(floor["flops"] / floor[precision] for floor in floors)
        _roof(side, peak / 1e12, report.get("card", {}).get("bytes"))
    sides[0][0].set_ylabel("10¹² operations a second")
    named = zip(_COLOURS, works, strict=False)
    keys = [Line2D([], [], color=c, label=own["work"]["name"], linewidth=4) for c, own in named]
    marks = _MARKS.values()
    keys += [
        Line2D([], [], color="black", marker=m, linestyle="", fillstyle="none", label=label)
        for m, label in marks
    ]
    figure.legend(handles=keys, fontsize=7, ncols=2, loc="lower center")
    figure.tight_layout(rect=(0, 0.17, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _roof(side: Any, peak: float, bytes_a_second: float | None) -> None:
    """The rate of a product, and left of the ridge that of a copy."""
    bend = 10.0
    if bytes_a_second:
        bend = peak * 1e12 / bytes_a_second
        side.plot([1, bend], [bytes_a_second / 1e12, peak], color="grey", linewidth=1)
    side.plot([bend, 1e4], [peak, peak], color="grey", linewidth=1)
    side.text(9e3, peak * 1.1, f"one large product: {peak:.0f}", ha="right", fontsize=7)


def main() -> None:
    report = json.loads((RESULTS / "gpu.json").read_text())
    (RESULTS / "gpu.md").write_text(tables(report))
    roofline(report, ROOT / "docs" / "images" / "gpu-roofline.png")


if __name__ == "__main__":
    main()
