"""`lockstep zoo list | fetch NAME | path NAME`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import CheckpointError
from harness.zoo.fetch import ZooError, fetch, list_zoo, zoo_path

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "main"]


def add_parser(subparsers: Subparsers) -> None:
    """Add `zoo` to a command line. The chosen command is in `args.handler`, called with `args`, which gives the exit status."""
    zoo = subparsers.add_parser("zoo", help="small trained models, kept in the cache")
    _add_commands(zoo)


def main(argv: list[str] | None = None) -> int:
    """`python -m harness.zoo`."""
    parser = argparse.ArgumentParser(prog="python -m harness.zoo", description="Small trained models, kept in the cache.")
    _add_commands(parser)
    args = parser.parse_args(argv)
    handler: Callable[[argparse.Namespace], int] = args.handler
    return handler(args)


def _add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="zoo_command", required=True, metavar="{list,fetch,path}")
    listing = commands.add_parser("list", help="what the zoo knows and what is in the cache")
    fetching = commands.add_parser("fetch", help="download a model, convert it and print its directory")
    pathing = commands.add_parser("path", help="print the directory of a model that is in the cache")
    for command in (fetching, pathing):
        command.add_argument("name", help="as in zoo:NAME")
    for command, action in ((listing, _list), (fetching, _fetch), (pathing, _path)):
        command.add_argument("--json", type=Path, metavar="FILE", help="write the answer to FILE too")
        command.set_defaults(handler=_reporting_errors(action))


def _reporting_errors(action: Callable[[argparse.Namespace], Any]) -> Callable[[argparse.Namespace], int]:
    def handler(args: argparse.Namespace) -> int:
        try:
            answer = action(args)
        except (CheckpointError, ZooError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if args.json is not None:
            args.json.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
        return 0

    return handler


def _list(args: argparse.Namespace) -> Any:
    answer = []
    for entry, cached in list_zoo():
        state = "in the cache" if cached else f"not fetched ({entry.download_mb} MB to download, {entry.disk_mb} MB on disk)"
        print(f"zoo:{entry.name}  {entry.title}  [{entry.licence}]  {state}")
        answer.append({"name": entry.name, "title": entry.title, "licence": entry.licence, "cached": cached})
    return answer


def _fetch(args: argparse.Namespace) -> Any:
    path = fetch(args.name)
    print(path)
    return {"name": args.name, "path": str(path)}


def _path(args: argparse.Namespace) -> Any:
    path = zoo_path(args.name)
    if not path.exists():
        raise ZooError(f"{args.name} is not in the cache. Run: lockstep zoo fetch {path.name}")
    print(path)
    return {"name": args.name, "path": str(path)}
