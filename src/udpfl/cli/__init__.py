"""The `udpfl` command: one file per verb."""

import sys

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exit codes: 0 fine, 1 bad news, 2 bad input, 130 interrupted."""
    try:
        from udpfl.cli.app import call

        code = call(arguments)
    except KeyboardInterrupt:  # also while something is being imported
        code = INTERRUPTED
    sys.exit(code)


__all__ = ["main"]
