"""A page about an attack on a run."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from udpfl.accounting import PrivacyStatement
from udpfl.report._sections import prose, scrolling, text
from udpfl.report.page import document
from udpfl.runs.attacks import AttackRecord
from udpfl.writing import write_whole

_LINE, _CAP = "#1f77b4", "#c0392b"


def write_attack_page(record: AttackRecord) -> None:
    """The page about one attack, beside its file.

    Args:
        record: The attack, as its file says it.

    Raises:
        UdpflError: The page cannot be written.
    """
    write_whole(record.page, attack_page(record).encode())


def attack_page(record: AttackRecord) -> str:
    """An HTML document about one attack that needs no other file."""
    found = record.result
    statement = PrivacyStatement.from_dict(found["privacy"])
    attacked = found["attacked"]
    said = "warning" if record.exceeded else "state"
    body = [
        f'<header><p class="eyebrow">UDP-FL attack, {text(found["kind"])}</p>'
        f"<h1>{text(record.attack)}</h1><p>On {text(attacked['view'])}, tried on "
        f'{text(attacked["records"])}.</p><p class="{said}"><strong>{prose(record.verdict)}'
        "</strong></p></header>",
        _section("Results", figures_table(found["figures"])),
        _section("Beside somebody who learned nothing", figures_table(found["baselines"])),
        *(_section(_title(own), _image(draw_curve(own), _title(own))) for own in found["curves"]),
        *(_section(own["title"], _image(own["png"], own["title"])) for own in found["pictures"]),
        _section("What the run states", f"<p>{prose(statement)}</p>"),
        _section("How to read this", "".join(f"<p>{prose(note)}</p>" for note in _notes(found))),
        _section("Settings", _settings(record)),
    ]  # fmt: skip
    title = f"{record.attack}: attack on {record.path.parent.parent.resolve().name}"
    return document(title, "".join(body), (), scripts=())


def figures_table(figures: Sequence[Mapping[str, Any]]) -> str:
    """Figures, with their intervals and caps where any has one."""
    if not figures:
        return ""
    columns: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [("value", _value)]
    if any(own["low"] is not None for own in figures):
        columns.append(("interval", _interval))
    if any(own["cap"] is not None for own in figures):
        columns.append(("allowed", _cap))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("figure", *(n for n, _ in columns)))
    rows = "".join(
        f'<tr><th scope="row">{text(own["name"])}</th>'
        f"{''.join(f'<td>{shown(own)}</td>' for _, shown in columns)}</tr>"
        for own in figures
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return scrolling(table, "figures of the attack")


def draw_curve(curve: Mapping[str, Any]) -> str:
    """A line with its cap, as a PNG in base64."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x, y = list(curve["x"]), list(curve["y"])
    figure, axes = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
    axes.step(x, y, where="post", color=_LINE, label="the attack")
    if curve["log"]:
        low = min([value for value in (*x, *y) if value > 0], default=1e-3)
        low = max(min(low, 1e-2), 1e-5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, 1)
        axes.set_ylim(low, 1)
        axes.plot([low, 1], [low, 1], color="grey", linewidth=1, label="guesses")
    if curve["cap"]:
        # A logarithmic axis has no 0, and a line from there would be too high.
        known = [own for own in zip(x, curve["cap"], strict=True) if own[0] > 0 or not curve["log"]]
        axes.plot(
            *zip(*known, strict=True), color=_CAP, linestyle="--", label="the most ε and δ allow"
        )
    axes.set_xlabel(curve["x_label"])
    axes.set_ylabel(curve["y_label"])
    axes.legend(loc="lower right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()


def _title(curve: Mapping[str, Any]) -> str:
    return f"{curve['name']}: {curve['y_label']} against {curve['x_label']}"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{text(title)}</h2>{body}</section>" if body else ""


def _image(png: str, about: str) -> str:
    return f'<p><img alt="{text(about)}" src="data:image/png;base64,{text(png)}"></p>'


def _notes(found: Mapping[str, Any]) -> list[str]:
    return [
        *found["notes"],
        "An attack shows what this attacker found. A better one may find more, up to what ε and δ "
        "allow; only the privacy statement holds against all of them.",
    ]


def _settings(record: AttackRecord) -> str:
    found = record.result
    rows = [*found["options"].items(), ("seed", found["seed"])]
    rows += [("seconds", f"{found['seconds']:,.1f}"), ("made", record.made)]
    rows += [("version", f"udpfl {record.udpfl}"), ("run id", found["attacked"]["run"])]
    cells = "".join(
        f'<tr><th scope="row">{text(k)}</th><td>{text(_setting(v))}</td></tr>' for k, v in rows
    )
    return f'<table class="keys"><tbody>{cells}</tbody></table>'


def _setting(value: Any) -> str:
    """An option as people write it."""
    if value is None or value == "":
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def digits(value: float) -> str:
    """A figure with as many digits as it is worth.

    Example:
        >>> from udpfl.report.attacks import digits
        >>> [digits(each) for each in (22.871936, 0.77312, 0.0021, 6.3e-05, 0)]
        ['22.9', '0.773', '0.0021', 'below 0.0001', '0']
    """
    size = abs(value)
    if size == 0 or not math.isfinite(value):
        return f"{value:g}"
    if size < 1e-4:
        return "below 0.0001" if value > 0 else "between -0.0001 and 0"
    if size >= 10:
        return f"{value:,.1f}" if size < 1000 else f"{value:,.0f}"
    return f"{value:.3f}" if size >= 0.1 else f"{value:.2g}"


def _value(own: Mapping[str, Any]) -> str:
    return digits(own["value"]) + (f" {text(own['unit'])}" if own["unit"] else "")


def _interval(own: Mapping[str, Any]) -> str:
    if own["low"] is None or own["high"] is None:
        return "–"
    return f"{digits(own['low'])} to {digits(own['high'])} ({100 * own['confidence']:g} %)"


def _cap(own: Mapping[str, Any]) -> str:
    if own["cap"] is None:
        return "–"
    said = digits(own["cap"])
    return f"<strong>{said}: exceeded</strong>" if own["exceeds"] else said
