"""`lockstep replay FILE`: run a failing case again exactly; `--shrink` makes it smaller while it fails in the same way."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from harness.replay import Replay, read_replay, write_replay
from harness.shrink import run_replay, shrink

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("replay", help="run a failing case again, or shrink it", description=__doc__)
    parser.add_argument("file", type=Path, help="a replay file, as failing suites and `lockstep simulate` write them")
    parser.add_argument("--shrink", action="store_true", help="write a smaller case to FILE.small.json")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    replay = read_replay(arguments.file)
    if arguments.shrink:
        replay = shrink(replay, say=partial(print, end="\r", flush=True))
        path = arguments.file.with_suffix(".small.json")
        write_replay(replay, path)
        print(f"\nwritten to {path}")
    for line in describe(replay):
        print(line)
    error = run_replay(replay)
    if error is None:
        print(f"passes here{f', it was {replay.exception}' if replay.exception else ''}")
        return 0
    print(f"{type(error).__name__}: {error}")
    if replay.exception and replay.exception != type(error).__name__:
        print(f"(the file says {replay.exception})")
    return 1


def describe(replay: Replay) -> list[str]:
    """A case on a screen."""
    options = ", ".join(f"{name}={value!r}" for name, value in replay.options.items() if value not in ((), []))
    lines = [f"{replay.check} on {replay.model}: {options}"]
    if replay.num_speculative_tokens:
        method = replay.drafting.async_method
        script = f", right drafts in each round {list(replay.drafting.accept)}" if replay.drafting.accept else ""
        lines.append(f"  {method}, {replay.num_speculative_tokens} speculative tokens{script}")
    for item in replay.items:
        params = item.params
        changes = [f"max_tokens={params.max_tokens}", f"temperature={params.temperature:g}"]
        changes += [f"stop_token_ids={list(params.stop_token_ids)}"] if params.stop_token_ids else []
        changes += [f"min_tokens={params.min_tokens}"] if params.min_tokens else []
        changes += [f"n={params.n}"] if params.n > 1 else []
        when = f", arrives at step {item.arrive_at_step}" if item.arrive_at_step else ""
        end = f", aborted after {item.abort_after_tokens} tokens" if item.abort_after_tokens is not None else ""
        lines.append(f"  {item.request_id}: {list(item.prompt_token_ids)}, {', '.join(changes)}{when}{end}")
    if replay.num_rounds > 1:
        lines.append(f"  {replay.num_rounds} times, under the same ids")
    return lines
