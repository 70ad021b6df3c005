"""The command `lockstep`."""

from harness.cli.main import main

__all__ = ["main"]
