"""Models, data sets, methods, mechanisms and stages of one's own, found by name.

A name is, in this order, built in, a place to import from ("package.module:attribute"), or an
entry point that an installed package declares in the group `udpfl.models`, `udpfl.data`,
`udpfl.algorithms`, `udpfl.mechanisms` or `udpfl.stages`:

    [project.entry-points."udpfl.models"]
    resnet = "my_package.networks:resnet"

A place is imported because a person says so: in a configuration of their own, or with `trust`. A
file that came from elsewhere (a run folder, a ledger, events) may name what is built in, installed
or imported already, and nothing else.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from udpfl.errors import InvalidInput, UdpflError, Unsupported
from udpfl.mechanisms import BUILT_IN, Mechanism

Kind = Literal["models", "data", "algorithms", "mechanisms", "stages"]

_CONFIG_KEYS: dict[Kind, str] = {
    "models": "model.name",
    "data": "data.name",
    "algorithms": "training.algorithm",
    "mechanisms": "privacy.mechanism",
    "stages": "training.stages",
}
_named: set[str] = set()
"""Places that this process imported from because a person named them."""


def trust(place: str) -> Any:
    """Import "package.module:attribute", and let files name it from now on, in this process.

    Importing runs the code of that module. Call it for a run folder, a ledger or events that name
    code of one's own; the commands have `--trust` for it.

    Args:
        place: "package.module:attribute".

    Returns:
        The attribute.

    Raises:
        InvalidInput: The text does not look like that, or cannot be imported.

    Example:
        >>> from udpfl.plugins import trust
        >>> trust("udpfl.models:Mlp").__name__
        'Mlp'
    """
    return _imported("trust", place)


def resolve(kind: Kind, name: str, built_in: Mapping[str, Any]) -> Any:
    """What a name in a person's own configuration stands for.

    Importing runs the code of the module it names: names that a file brought along have to pass
    `require_trusted` first.

    Args:
        kind: "models", "data", "algorithms", "mechanisms" or "stages".
        name: Of something built in, "package.module:attribute", or an entry point.
        built_in: What the package has itself, by name.

    Returns:
        The value in `built_in`, the attribute, or what the entry point leads to.

    Raises:
        InvalidInput: Nothing has this name, or it cannot be imported.

    Example:
        >>> from udpfl.mechanisms import BUILT_IN
        >>> from udpfl.plugins import resolve
        >>> resolve("mechanisms", "laplace", BUILT_IN).__name__
        'Laplace'
    """
    key = _CONFIG_KEYS[kind]
    if name in built_in:
        return built_in[name]
    offers = offered(kind)
    if ":" in name:
        if point := _at(name, offers):
            return _attempt(key, point.load, repr(name))
        return _imported(key, name)
    if name in offers:
        return _from_package(key, name, offers[name])
    known = sorted({*built_in, *offers})
    if kind == "mechanisms":  # "none" is no mechanism, but a word of the configuration
        known = [*sorted({*BUILT_IN, *known}), "none"]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(
        key,
        f"there is no {name!r}; {hint}known names are {', '.join(known) or 'none'}; "
        "your own is written as package.module:attribute",
    )


def own_mechanism(name: str) -> Mechanism:
    """The mechanism that a name of an installed package, or a place, stands for.

    A name may lead to an instance, whose shape counts, or to a class that a scale is enough for.
    """
    key = _CONFIG_KEYS["mechanisms"]
    found = resolve("mechanisms", name, {})
    if isinstance(found, type) and issubclass(found, Mechanism):
        make: Any = found
        try:
            found = make(1.0)
        except TypeError as error:  # it is abstract, or has parameters without a default
            raise InvalidInput(
                key,
                f"{name!r} cannot be built from a scale alone: {error}; name an instance instead",
            ) from None
    if not isinstance(found, Mechanism):
        raise InvalidInput(key, f"{name!r} is not a mechanism: {found!r}")
    return found


def offered(kind: Kind) -> dict[str, list[EntryPoint]]:
    """Entry points by name; the same one seen twice on the path counts once."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=f"udpfl.{kind}"):
        found.setdefault(point.name, {})[point.value] = point
    return {name: list(points.values()) for name, points in found.items()}


def require_trusted(kind: Kind, name: str) -> None:
    """Refuse a name in a stored configuration that would import what no person has named.

    Guarantee: nothing is imported, and a name that passes leads to a module that was named by a
    person in this process, that an installed package offers, or that is imported already.
    """
    if ":" not in name or name in _named or _at(name, offered(kind)):
        return
    if kind == "mechanisms" and name.partition(":")[0] in sys.modules and _loaded(name):
        return
    raise _refusal(f"{_CONFIG_KEYS[kind]} = {name!r}", name)


def mechanism_class(path: str) -> type[Mechanism]:
    """The class of a mechanism that a file names as "package.module:Class".

    Guarantee: no module is imported because of the path, and no code runs to look it up. The class
    is one that this process has already, or one in a package that is installed: where the class is
    not there yet, every entry point for mechanisms is loaded, whichever class is looked for.
    """
    found = _loaded(path)
    if found is None:
        reasons = _load_all("mechanisms", tuple(sys.path))
        found = _loaded(path)
        if found is None:
            raise _refusal(f"mechanism {path!r}", path, *reasons)
    return found


def _loaded(path: str) -> type[Mechanism] | None:
    """A class among those that exist; of several with one name, the last that was defined."""
    # Attributes of modules are not looked up: a module may compute them (`__getattr__`), or be one
    # that is loaded when it is first touched.
    found = None
    waiting: list[Any] = [Mechanism]
    while waiting:
        kind = waiting.pop(0)
        if f"{kind.__module__}:{kind.__qualname__}" == path:
            found = kind
        waiting += kind.__subclasses__()
    return found


@functools.lru_cache(maxsize=16)  # a ledger may have very many rows of one unknown class
def _load_all(kind: Kind, path: tuple[str, ...]) -> list[str]:
    """Load every entry point of a group that this path has; returns why some cannot be loaded."""
    reasons = []
    for name, points in offered(kind).items():
        for point in points:
            try:
                _attempt(_CONFIG_KEYS[kind], point.load, f"{name!r} ({point.value})")
            except UdpflError as error:  # one broken package must not hide the others
                reasons.append(str(error))
    return reasons


def _refusal(what: str, place: str, *reasons: str) -> Unsupported:
    """What is named by a file alone, and how a person allows it."""
    if not _is_place(place):  # whoever is told to copy a text should know that it is a name
        return Unsupported(f"{what} does not look like package.module:attribute")
    return Unsupported(
        f"{what} is named by a file, and code is not imported because a file names it: if this "
        f"code is one you trust, allow it with --trust {place}, in Python with "
        f"udpfl.plugins.trust({place!r}), or "
        "install the package that offers it" + "".join(f"; {reason}" for reason in reasons)
    )


def _at(place: str, offers: Mapping[str, list[EntryPoint]]) -> EntryPoint | None:
    """The entry point of exactly this place."""
    points = (point for own in offers.values() for point in own)
    return next((point for point in points if point.value == place), None)


def _is_place(text: str) -> bool:
    module, _, attribute = text.partition(":")
    return all(part.isidentifier() for part in f"{module}.{attribute}".split("."))


def _from_package(key: str, name: str, points: list[EntryPoint]) -> Any:
    if len(points) > 1:
        places = " and ".join(point.value for point in points)
        raise InvalidInput(
            key, f"{name!r} is offered by {places}; write the full name of one of them"
        )
    point = points[0]
    return _attempt(key, point.load, f"{name!r} ({point.value})")


def _imported(key: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not _is_place(name):
        raise InvalidInput(key, f"must look like package.module:attribute, got {name!r}")
    importlib.invalidate_caches()  # the module may be younger than the running interpreter
    _look_here_for(module_name)
    module = _attempt(key, lambda: importlib.import_module(module_name), repr(module_name))
    try:
        found = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, [n for n in vars(module) if n[0] != "_"], n=1)
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise InvalidInput(key, f"cannot import {name!r}: {error}{hint}") from error
    _named.add(name)
    return found


def _look_here_for(module_name: str) -> None:
    """Let modules in the current folder be imported, where the one that is named lies there."""
    # An installed command has its own folder first on the path where `python -m` has the current
    # one; a module that lies next to the configuration should be found either way.
    here = str(Path.cwd())
    if "" in sys.path or here in sys.path:
        return
    if PathFinder.find_spec(module_name.partition(".")[0], [here]) is not None:
        sys.path.insert(0, here)


def _attempt(key: str, load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except UdpflError:
        raise  # says itself what is wrong, such as an extra that is not installed
    except ImportError as error:
        raise InvalidInput(key, f"cannot import {what}: {error}") from error
    except Exception as error:  # the module's own code failed, in whatever way
        reason = f"{type(error).__name__}: {error}"
        raise InvalidInput(key, f"cannot import {what}: {reason}") from error
