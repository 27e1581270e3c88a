"""Tables and pictures of measured results; no number here that is not in a result file.

python benchmarks/tables.py     results/*.json to .md and .png, docs/performance.md and README.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from figures import (
    FLOWER_WAYS,
    flower_figure,
    gradients_mib,
    grown_mib,
    profile_figure,
    scaling_figure,
    training_figure,
)
from machine import ROOT
from stages import REST

DOCUMENT = ROOT / "docs" / "performance.md"


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))


def machine_line(report: dict[str, Any]) -> str:
    """Where the numbers come from."""
    if report.get("quick"):
        return "A quick try of the benchmark itself: these times mean nothing."
    machine = report["machine"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    versions = ", ".join(
        f"{name} {machine[name]}" for name in ("torch", "opacus", "flwr", "ray") if machine[name]
    )
    return (
        f"{machine['cpu']}, {machine['usable_cores']} cores, {threads}, Python "
        f"{machine['python']}, {versions}; load before the start {machine['load_before']}."
    )


def training_table(report: dict[str, Any]) -> str:
    """Every setting: multiples of the plain loop, median and, in brackets, least."""
    text = f"{machine_line(report)}\n"
    for setting, found in report["settings"].items():
        models = found["models"]
        names = list(dict.fromkeys(name for own in models.values() for name in own))
        body = []
        for name in names:
            cells = []
            for own in models.values():
                row = own.get(name)
                cells.append("" if row is None else _ratio(row))
            body.append([name, *cells])
        values = " ".join(f"{k}={v}" for k, v in found["environment"].items())
        plain = ", ".join(
            f"{next(iter(own.values()))['median']:.3f} s ({model})" for model, own in models.items()
        )
        text += f"\nSettings {setting!r}: {values or 'nothing set'}. A plain round takes {plain}.\n"
        text += "\n" + rows(["median (least)", *(f"`{model}`" for model in models)], body)
    return text


def _ratio(row: dict[str, Any]) -> str:
    start = f" + {row['start_up']:.0f} s start" if "start_up" in row else ""
    return f"{row['median_ratio']:.2f} ({row['min_ratio']:.2f}){start}"


def profile_table(report: dict[str, Any]) -> str:
    """Milliseconds and shares of every stage, and what durability costs."""
    models = report["models"]
    stages = [stage for stage in next(iter(models.values()))["stages"] if stage != REST]
    body = []
    for stage in (*stages, REST):
        cells = [_stage(own, stage) for own in models.values()]
        body.append([stage, *cells])
    body.append(["whole round", *(f"{1e3 * own['round']:.0f} ms" for own in models.values())])
    text = f"{machine_line(report)} Setting {report['setting']!r}.\n\n"
    text += rows(["stage", *(f"`{model}`" for model in models)], body) + "\n"
    for model, own in models.items():
        text += (
            f"`{model}`: charging and checkpoint are {_percent(own, 'charging_and_checkpoint')} of "
            f"a round that is not evaluated, {_percent(own, 'durable')} with the packing of "
            "messages;"
        )
        beside = own["side_by_side"]
        text += (
            f" with {beside['threads']} threads: "
            f"{_percent(beside, 'charging_and_checkpoint')} and {_percent(beside, 'durable')} of "
            f"{1e3 * beside['round']:.0f} ms.\n"
        )
    return text


def _percent(own: dict[str, Any], share: str) -> str:
    return f"{100 * own[f'{share}_share']:.1f} %"


def _stage(own: dict[str, Any], stage: str) -> str:
    seconds = own["stages"][stage]
    return f"{1e3 * seconds:.1f} ms ({100 * seconds / own['round']:.1f} %)"


def scaling_table(report: dict[str, Any]) -> str:
    """One short section for each measurement that was made."""
    text = f"{machine_line(report)}\n"
    if found := report.get("clients"):
        body = [
            [str(run["workload"]["picked"]), f"{run['median']:.3f}",
             f"{1e3 * run['median'] / run['workload']['picked']:.1f}"]
            for run in found["runs"]
        ]  # fmt: skip
        text += "\n" + rows(["clients per round", "seconds per round", "ms per client"], body)
        text += (
            f"\nA straight line, {1e3 * found['seconds_at_none']:.0f} ms and "
            f"{1e3 * found['seconds_per_client']:.1f} ms per client, misses no "
            f"row by more than {100 * found['worst_miss']:.0f} %.\n"
        )
    if found := report.get("rounds"):
        count = len(found["run"]["seconds"])
        text += (
            f"\n{count} rounds: {found['first_quarter']:.4f} s in the first quarter, "
            f"{found['last_quarter']:.4f} s in the last (medians), a factor of "
            f"{found['growth']:.2f}; the ledger has {found['run']['ledger_mib']:.1f} MiB.\n"
        )
    if found := report.get("memory"):
        text += "\n" + rows(
            ["model", "clients", "sampled", "records", "all gradients", "records alone",
             "before", "peak", "grown beside the records"],
            [_memory(run) for run in found],
        )  # fmt: skip
        text += (
            "\nMiB, peak resident memory of a process of its own. `all gradients` is clients × "
            "sampled records × parameters × 4 bytes: what holding every gradient would take.\n"
        )
    if run := report.get("thousand"):
        workload = run["workload"]
        text += (
            f"\n{workload['clients']:,} clients, {workload['picked']} a round, "
            f"{len(run['seconds']) + 2} rounds: {run['total']:.1f} s in all, {run['median']:.3f} s "
            f"a round, {run['outside_rounds']:.1f} s before and after the rounds, peak "
            f"{run['peak_mib']:.0f} MiB.\n"
        )
    return text


def _memory(run: dict[str, Any]) -> list[str]:
    workload = run["workload"]
    sampled = round(workload["records"] * workload["rate"])
    numbers = [
        gradients_mib(run), run["records_mib"], run["before_mib"], run["peak_mib"], grown_mib(run)
    ]  # fmt: skip
    return [
        f"`{workload['model']}`", str(workload["picked"]), str(sampled), str(workload["records"]),
        *(f"{number:,.0f}" for number in numbers),
    ]  # fmt: skip


def flower_table(report: dict[str, Any]) -> str:
    """Seconds of a round, the four ways; then the parts of one answer, and what starting costs."""
    body = [
        [
            f"`{row['model']}`, {row['nodes']} nodes",
            *(f"{row[way]:.2f}" if way in row else "" for way in FLOWER_WAYS),
        ]
        for row in report["rounds"]
    ]
    text = f"{machine_line(report)}\n\n" + rows(["seconds per round", *FLOWER_WAYS], body) + "\n"
    answers = report["answer"]
    parts = {
        "training": "training, noise included",
        "ledger": "ours: the ledger's transaction",
        "rest": "ours: policy, records of the site, serialisation",
        "server": "ours: the server's side of one answer",
    }
    body = [
        [what, *(f"{1e3 * _answer_part(own, part):.1f} ms" for own in answers.values())]
        for part, what in parts.items()
    ]
    for nodes in dict.fromkeys(row["nodes"] for row in report["rounds"]):
        ours = [own["ours"] + (nodes - 1) * own["server"] for own in answers.values()]
        body.append(
            [f"**ours in a round of {nodes} nodes**", *(f"**{1e3 * own:.0f} ms**" for own in ours)]
        )
    text += rows(["one answer", *(f"`{model}`" for model in answers)], body) + "\n"
    return text + rows(
        ["a process that Flower starts for a message imports", "seconds"],
        [[what, f"{seconds:.2f}"] for what, seconds in report["imports"].items()],
    )


def _answer_part(own: dict[str, float], part: str) -> float:
    return own["site"] - own["training"] - own["ledger"] if part == "rest" else own[part]


TABLES = {
    "training-cpu": (training_table, training_figure),
    "profile-cpu": (profile_table, profile_figure),
    "scaling-cpu": (scaling_table, scaling_figure),
    "flower-cpu": (flower_table, flower_figure),
}
_SHOWS = {
    "training-cpu": ("training.py", "time of a round as a multiple of plain PyTorch"),
    "profile-cpu": ("profile_training.py", "stages of a round"),
    "scaling-cpu": ("scaling.py", "time against clients and rounds, memory against their product"),
    "flower-cpu": ("flower_rounds.py", "seconds of a round over Flower"),
}


def section(name: str, table: str) -> str:
    """What the page shows of a result: picture, table, and where both come from."""
    script, what = _SHOWS[name]
    source = f"[results/{name}.json](../results/{name}.json)"
    return (
        f"![{what}](images/{name}.png)\n\n{table.strip()}\n\n"
        f"(`python benchmarks/{script}`; every number is in {source}.)"
    )


def filled(document: str, name: str, table: str) -> str:
    """The document with a table between its two marks."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if document.count(begin) != 1 or document.count(end) != 1:
        raise SystemExit(f"the document needs {begin} and {end}, once each")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{table.strip()}\n{end}", document)


def calibration_table(report: dict[str, Any]) -> str:
    """Seconds by library and accountant, one column for each number of steps."""
    steps = list(dict.fromkeys(row["steps"] for row in report["rows"]))
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in report["rows"]:
        found.setdefault((row["library"], row["what"]), {})[row["steps"]] = row["seconds"]
    body = [
        [_ours(library), what, *(f"{own[count]:.3f}" for count in steps)]
        for (library, what), own in found.items()
    ]
    return rows(["library", "mechanism, accountant", *(f"T = {count:,}" for count in steps)], body)


def short_training_table(report: dict[str, Any]) -> str:
    """The medians of the default setting alone."""
    models = report["settings"]["default"]["models"]
    names = list(next(iter(models.values())))
    body = [
        [_ours(name), *(f"{own[name]['median_ratio']:.2f}" for own in models.values())]
        for name in names
    ]
    return rows(["", *(f"`{model}`" for model in models)], body)


def _ours(name: str) -> str:
    return f"**{name}**" if name == "udpfl" else name


SHORT = {
    "calibration": ("calibration", calibration_table),
    "training": ("training-cpu", short_training_table),
}
"""Tables of the README: mark, result file, table."""


def readme(text: str) -> str:
    """The README with its tables as the result files have them."""
    for mark, (name, table) in SHORT.items():
        report = json.loads((ROOT / "results" / f"{name}.json").read_text())
        text = filled(text, mark, table(report))
    return text


def main() -> None:
    (ROOT / "README.md").write_text(readme((ROOT / "README.md").read_text()))
    document = DOCUMENT.read_text()
    for name, (table, figure) in TABLES.items():
        path = ROOT / "results" / f"{name}.json"
        if path.exists():
            report = json.loads(path.read_text())
            path.with_suffix(".md").write_text(table(report))
            figure(report, path.with_suffix(".png"))
            figure(
                report, ROOT / "docs" / "images" / f"{name}.png"
            )  # pages show only what is there
            document = filled(document, name, section(name, table(report)))
    DOCUMENT.write_text(document)


if __name__ == "__main__":
    main()
