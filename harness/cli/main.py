"""Entry point: one subcommand for each thing that people do."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import reports.cli
from engine import EngineError
from harness.cli import acceptance, defects, diff, faults, generate, replay, simulate
from harness.zoo import ZooError
from harness.zoo import cli as zoo

__all__ = ["main"]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lockstep", description="Is an LLM engine with asynchronous scheduling and speculative decoding right?"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    generate.add_parser(commands)
    diff.add_parser(commands)
    acceptance.add_parser(commands)
    defects.add_parser(commands)
    faults.add_parser(commands)
    simulate.add_parser(commands)
    replay.add_parser(commands)
    reports.cli.add_parser(commands)
    zoo.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 fine, 1 a difference was found, 2 something is wrong with the call."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.handler(arguments) or 0)
    except (EngineError, ZooError, ValueError, OSError, ImportError) as error:
        print(f"lockstep {arguments.command}: {error}", file=sys.stderr)
        return 2
