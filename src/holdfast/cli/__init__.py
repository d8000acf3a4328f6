"""The command line: thin commands over the bus."""

from holdfast.cli.program import main

__all__ = ["main"]
