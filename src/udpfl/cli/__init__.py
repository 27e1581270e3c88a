"""The `udpfl` command: one file per verb."""

from udpfl.cli.app import main

__all__ = ["main"]
