"""Public docstrings: every parameter is named, what is returned is said, and examples run."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest

PACKAGES = [
    "udpfl",
    "udpfl.accounting",
    "udpfl.algorithms",
    "udpfl.audit",
    "udpfl.comparison",
    "udpfl.data",
    "udpfl.features",
    "udpfl.attacks",
    "udpfl.federation",
    "udpfl.harmonizer",
    "udpfl.mechanisms",
    "udpfl.models",
    "udpfl.report",
    "udpfl.trackers",
    "udpfl.site",
    "udpfl.deploy",
]
"""What each has in `__all__` is public."""
BESIDES = [
    "udpfl.analysis.between_runs:connect",
    "udpfl.analysis._convergence:measure",
    "udpfl.analysis.errors:errors",
    "udpfl.analysis.extra_rounds:network_curves",
    "udpfl.analysis.extra_rounds:study",
    "udpfl.plugins:resolve",
    "udpfl.plugins:trust",
]
"""What is public in modules that have no `__all__`."""
RESULT = "is returned, and not made by a user"
RAISED = "is raised, and not made by a user"
PROTOCOL = "says what is handed to a user's own code"
ASSEMBLED = "is put together by `run` out of more than an example has room for"
WITHOUT_EXAMPLE = {
    "Attack": "is not made by itself: `build` has an example",
    "Attacked": RESULT,
    "BudgetExceeded": RAISED,
    "Calibrated": RESULT,
    "Choice": RESULT,
    "ClientPlan": RESULT,
    "Comparison": RESULT,
    "ComparisonInterrupted": RAISED,
    "Curve": RESULT,
    "InProcessClients": ASSEMBLED,
    "Infeasible": RAISED,
    "Interrupted": RAISED,
    "LedgerError": RAISED,
    "LedgerUnavailable": RAISED,
    "Loader": PROTOCOL,
    "LocalClient": ASSEMBLED,
    "LocalTraining": PROTOCOL,
    "MLflow": "importing mlflow takes seconds",
    "NoReply": RAISED,
    "Mechanism": "is not subclassed: `Tabulated` is, and has an example",
    "Picture": RESULT,
    "PlanRow": RESULT,
    "Pool": ASSEMBLED,
    "PublicData": ASSEMBLED,
    "Refused": RAISED,
    "Row": RESULT,
    "Run": RESULT,
    "RunPaused": RAISED,
    "RunRecord": RESULT,
    "RunSelection": RESULT,
    "SeedRun": RESULT,
    "ShadowModels": RESULT,
    "ShapeSearch": PROTOCOL,
    "Source": RESULT,
    "Target": ASSEMBLED,
    "Tracker": "is not subclassed by a user: `TensorBoard` has an example",
    "TrainedModel": RESULT,
    "Trainer": ASSEMBLED,
    "Transport": PROTOCOL,
    "UdpflError": RAISED,
    "Unsupported": RAISED,
    "Verdict": RESULT,
    "Verification": RESULT,
}
"""Classes without an example, and why. Every function has one."""
MOST_LINES = 6
"""Lines of an example, apart from imports."""


def public() -> dict[str, Any]:
    """Every public function and class, by where it is imported from."""
    names = [f"{own}:{name}" for own in PACKAGES for name in import_module(own).__all__]
    found: dict[str, Any] = {}
    for place in [*names, *BESIDES]:
        module, _, name = place.partition(":")
        thing = getattr(import_module(module), name)
        is_ours = getattr(thing, "__module__", "").startswith("udpfl")
        is_new = all(thing is not inspect.unwrap(own) for own in found.values())
        if is_ours and is_new and (inspect.isclass(thing) or inspect.isfunction(thing)):
            found[place] = thing
    return found


PUBLIC = public()


def doc_of(thing: Any) -> str:
    """Its own docstring, without indentation; a class does not inherit one."""
    return inspect.cleandoc(thing.__doc__ or "")


def section(doc: str, name: str) -> str:
    """The lines below a heading such as `Args:`, without their indentation."""
    found = re.search(rf"^{name}:\n((?:(?:    .*)?\n?)*)", doc, re.MULTILINE)
    return textwrap.dedent(found[1]).strip() if found else ""


def listed(doc: str) -> set[str]:
    """The parameters that `Args:` names."""
    return set(re.findall(r"^\*{0,2}(\w+): \S", section(doc, "Args"), re.MULTILINE))


def parameters(thing: Any) -> set[str]:
    """What a caller may hand over; nothing for protocols and exceptions without a constructor."""
    if getattr(thing, "_is_protocol", False):
        return set()
    if inspect.isclass(thing) and not hasattr(thing, "_fields"):
        maker = next(own for own in thing.__mro__ if {"__init__", "__new__"} & vars(own).keys())
        if maker.__module__ in ("builtins", "typing"):
            return set()
    return set(inspect.signature(thing).parameters)


def documented_fields(thing: Any) -> set[str]:
    """Fields of a record with a text below them, its own and inherited ones."""
    if hasattr(thing, "model_fields"):  # a section of a file
        return {name for name, own in thing.model_fields.items() if own.description}
    if not (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields")):
        return set()
    found = set()
    for own in thing.__mro__:
        if own.__module__.startswith("udpfl"):
            body = ast.parse(textwrap.dedent(inspect.getsource(own))).body[0].body
            for line, below in pairwise(body):
                has_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if isinstance(line, ast.AnnAssign) and has_text:
                    found.add(line.target.id)
    return found


def faults(thing: Any) -> Iterator[str]:
    """What its docstring lacks, or says of what is not there."""
    doc, taken = doc_of(thing), parameters(thing)
    named, fields = listed(doc), documented_fields(thing)
    yield from (f"parameter {name} is not documented" for name in sorted(taken - named - fields))
    yield from (f"there is no parameter {name}" for name in sorted(named - taken))
    if not inspect.isclass(thing):
        returned = inspect.signature(thing).return_annotation
        if (returned not in (None, "None")) != bool(section(doc, "Returns")):
            yield f"it returns {returned}, and Returns: says otherwise"
    elif section(doc, "Returns"):
        yield "a class does not return"


def examples(thing: Any, place: str) -> doctest.DocTest:
    """What its docstring shows. It has to import whatever it uses."""
    return doctest.DocTestParser().get_doctest(doc_of(thing), {}, place, None, 0)


@pytest.mark.parametrize("place", PUBLIC)
def test_a_docstring_names_what_the_signature_has(place):
    assert doc_of(PUBLIC[place])
    assert list(faults(PUBLIC[place])) == []


def test_everything_has_an_example_but_what_is_listed():
    bare = {name.partition(":")[2] for name, own in PUBLIC.items() if ">>>" not in doc_of(own)}
    assert bare == WITHOUT_EXAMPLE.keys()
    assert all(inspect.isclass(PUBLIC[place]) for place in PUBLIC if place.endswith(tuple(bare)))


@pytest.mark.parametrize(
    "place", [place for place, thing in PUBLIC.items() if ">>>" in doc_of(thing)]
)
def test_the_example_runs(place, tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    shown = examples(PUBLIC[place], place)
    said: list[str] = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(optionflags=options).run(shown, out=said.append)
    assert not result.failed, "".join(said)
    assert section(doc_of(PUBLIC[place]), "Example")
    lines = [line for own in shown.examples for line in own.source.splitlines()]
    assert sum(not line.startswith(("import ", "from ")) for line in lines) <= MOST_LINES


def right(size: int, **options: float) -> int:
    """A docstring that is complete.

    Args:
        size: In bytes, or
            in whatever: else.
        **options: Further ones.

    Returns:
        A number.
    """
    return size


def renamed(length: int) -> int:
    """The parameter was called otherwise.

    Args:
        size: In bytes.

    Returns:
        A number.
    """
    return length


def silent(size: int) -> int:
    """Nothing more is said."""
    return size


class Kept:
    """Takes a number.

    Args:
        size: In bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size


class Inherits(Kept):
    """Says nothing of the number."""


@pytest.mark.parametrize(
    ("thing", "count"), [(right, 0), (renamed, 2), (silent, 2), (Kept, 0), (Inherits, 1)]
)
def test_a_renamed_or_missing_parameter_is_noticed(thing, count):
    assert len(list(faults(thing))) == count


def test_an_example_that_says_otherwise_is_noticed():
    shown = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(shown, out=lambda _: None).failed
