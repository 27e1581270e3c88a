"""Names in a policy that stand for nothing: a server that uses the right ones would be refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from udpfl import algorithms, data, models
from udpfl.config.section import refusal
from udpfl.errors import InvalidInput
from udpfl.plugins import Kind, resolve
from udpfl.site.policy import Policy


def require_names(policy: Policy) -> None:
    """Look up models, methods and the data set of a policy; code of the site's own is imported.

    Raises:
        InvalidInput: Some stand for nothing; it says what was probably meant.
    """
    if problems := list(_problems(policy)):
        raise refusal(problems)


def _problems(policy: Policy) -> Iterator[tuple[str, str]]:
    code = policy.code
    yield from _unknown("data.name", "data", policy.data.name, data.BUILT_IN, code)
    for model in policy.server.models:
        yield from _unknown("server.models", "models", model.name, models.BUILT_IN, code)
    for name in policy.server.methods:
        yield from _unknown("server.methods", "algorithms", name, algorithms.BUILT_IN, code)


def _unknown(
    key: str, kind: Kind, name: str, built_in: Mapping[str, Any], code: str
) -> Iterator[tuple[str, str]]:
    try:
        resolve(kind, name, built_in)
    except InvalidInput as error:
        is_missing = isinstance(error.__cause__, ModuleNotFoundError)
        hint = f"; the policy's own files are looked for in code = {code!r}" if is_missing else ""
        yield key, error.message + hint
