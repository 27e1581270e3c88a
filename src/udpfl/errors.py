"""The one exception hierarchy: every error this package raises on purpose is a `UdpflError`."""

from __future__ import annotations


class UdpflError(Exception):
    """Base class: catch this to catch everything the package raises on purpose."""


class InvalidInput(UdpflError, ValueError):
    """A value that can never be right, with the name of the parameter that carried it.

    Args:
        parameter: The parameter, or the key of a configuration.
        message: What it must be, and what it is.

    Example:
        >>> from udpfl import InvalidInput
        >>> print(InvalidInput("delta", "must lie in [0, 1), got 2"))
        delta: must lie in [0, 1), got 2
    """

    def __init__(self, parameter: str, message: str) -> None:
        self.parameter = parameter
        self.message = message
        self.problems: tuple[tuple[str, str], ...] = ((parameter, message),)
        """Every parameter that is wrong, with what is said of it; more than one in a file."""
        super().__init__(f"{parameter}: {message}")


class WrongKey(InvalidInput):
    """A key of a file that is missing or unknown, or whose value is wrong."""


class Unsupported(UdpflError):
    """A combination for which no valid accounting is known. Refused, never approximated."""


class Infeasible(UdpflError):
    """No amount of noise of this kind meets the requested budget."""


class BudgetExceeded(UdpflError):
    """An answer would cost more than its client's budget has left. Nothing was stored or sent."""


class Refused(UdpflError):
    """A request that the policy of a site does not allow. Nothing was trained, nothing charged."""


class LedgerError(UdpflError):
    """The ledger cannot be read or written, or does not hold together. Nothing was released."""


class LedgerUnavailable(LedgerError):
    """Its file cannot be reached: permission, a lock, the disk. What is in it may be fine."""


class MissingExtra(UdpflError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it.

    Args:
        module: What could not be imported.
        extra: The extra of this package that brings it.

    Example:
        >>> from udpfl import MissingExtra
        >>> MissingExtra("torch", "train").extra
        'train'
    """

    def __init__(self, module: str, extra: str) -> None:
        self.extra = extra
        how = f"pip install -e '.[{extra}]' in a checkout of udpfl"
        super().__init__(f"{module} is not installed: {how}")
