"""Every key of a run's configuration: in tables on a screen, the changed ones on paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from udpfl.config import Config
from udpfl.config.documents import known_keys
from udpfl.report._sections import prose, text

_SECTIONS = ("data", "model", "privacy", "training")


@dataclass(frozen=True)
class _Setting:
    """One key, its value in words, and whether it is at its default."""

    section: str
    name: str
    value: str
    is_default: bool
    meaning: str

    @property
    def key(self) -> str:
        """As it stands in a configuration file."""
        own = self.section in ("run", self.name)
        return self.name if own else f"{self.section}.{self.name}"


def configuration(config: Config) -> str:
    """Every key by section; what is at its default is dimmed."""
    groups: dict[str, list[_Setting]] = {}
    for setting in _settings(config):
        groups.setdefault(setting.section, []).append(setting)
    body = []
    for name, settings in groups.items():
        changed = sum(not own.is_default for own in settings)
        rows = "".join(map(_row, settings))
        body.append(
            f"<details{' open' if changed else ''}><summary>{text(name)} <small>{changed} of "
            f'{len(settings)} changed</small></summary><table class="keys"><tbody>{rows}'
            "</tbody></table></details>"
        )
    return (
        '<section class="screen" aria-labelledby="configuration">'
        f'<h2 id="configuration">Configuration</h2>{"".join(body)}</section>'
    )


def changed_settings(config: Config) -> list[tuple[str, str]]:
    """The keys that are not at their defaults, and their values in words."""
    return [(own.key, own.value) for own in _settings(config) if not own.is_default]


def _row(setting: _Setting) -> str:
    shade = ' class="default"' if setting.is_default else ""
    note = ' <small class="only">default</small>' if setting.is_default else ""
    return (
        f'<tr{shade}><th scope="row">{text(setting.name)}</th><td>{text(setting.value)}{note}</td>'
        f'<td class="wide">{prose(setting.meaning)}</td></tr>'
    )


def _settings(config: Config) -> Iterator[_Setting]:
    """All of them, top level first; keys inside a table of options one by one."""
    plain, defaults, about = config.model_dump(exclude={"out"}), Config().model_dump(), known_keys()
    top = {key: value for key, value in plain.items() if key not in _SECTIONS}
    groups: list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]] = [
        ("run", "", top, defaults)
    ]
    for name in _SECTIONS:
        if isinstance(plain[name], dict):
            groups.append((name, f"{name}.", plain[name], defaults[name]))
        else:
            groups.append((name, "", {name: plain[name]}, defaults))
    for section, prefix, values, usual in groups:
        for key, value in values.items():
            is_default = key in usual and value == usual[key]
            meaning = about.get(prefix + key, {}).get("description", "")
            for name, own in _flat(key, value):
                yield _Setting(section, name, _words(own), is_default, meaning)
                meaning = ""  # once for all options of a table


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The keys inside a table, by their whole names."""
    if isinstance(value, Mapping) and value:
        for inner, own in value.items():
            yield from _flat(f"{key}.{inner}", own)
    else:
        yield key, value


def _words(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_words(own)}" for key, own in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value)) or "none"
    return str(value)
