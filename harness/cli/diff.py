"""`lockstep diff`: two configurations of the engine on your prompts; exit status 1 at the first token that differs."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from engine import LLM
from harness.cli.arguments import (
    add_json,
    add_model,
    add_prompts,
    add_sampling,
    human_output,
    named_values,
    read_prompts,
    sampling_from,
    write_json,
)
from harness.compare import assert_same_outputs
from harness.engines import open_engine
from harness.errors import ValidationError
from harness.workload import Run, WorkItem, run_workload

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("diff", help="compare two configurations on your prompts", description=__doc__)
    add_model(parser)
    for side, default in (("a", ["async_scheduling=false"]), ("b", [])):
        parser.add_argument(
            f"--{side}",
            nargs="*",
            default=default,
            metavar="NAME=VALUE",
            help=f"options of LLM for side {side} (default: {' '.join(default) or 'none'})",
        )
    add_prompts(parser)
    add_sampling(parser)
    add_json(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    say = partial(print, file=human_output(arguments))
    params = sampling_from(arguments)
    options = {side: named_values(getattr(arguments, side)) for side in "ab"}
    with open_engine(arguments.model, options["a"]) as a, open_engine(arguments.model, options["b"]) as b:
        prompts = read_prompts(arguments, a.get_tokenizer())
        longest = min(llm.config.max_model_len for llm in (a, b)) - 1
        refused = [f"prompt {i}" for i, prompt in enumerate(prompts) if not 1 <= len(prompt) <= longest]
        for name in refused:
            say(f"{name} is left out: it is empty or longer than {longest} tokens, which is what both sides take")
        named = [(f"prompt {i}", prompt) for i, prompt in enumerate(prompts)]
        items = [WorkItem(name, tuple(prompt), params) for name, prompt in named if name not in refused]
        runs = {side: run_workload(llm, items, label=side) for side, llm in (("a", a), ("b", b))}
        failures = _compare(items, runs, (a, b))
        result = {
            "a": {"config": a.config.as_record(), "num_overlapped_steps": runs["a"].stats.num_overlapped_steps},
            "b": {"config": b.config.as_record(), "num_overlapped_steps": runs["b"].stats.num_overlapped_steps},
            "num_prompts": len(items),
            "left_out": refused,
            "num_different": len(failures),
            "differences": [{"exception": type(e).__name__, "message": str(e), "evidence": e.evidence} for e in failures],
        }
    for side in "ab":
        llm_config, stats = result[side]["config"], runs[side].stats  # type: ignore[index]
        say(
            f"{side}: asynchronous scheduling {'on' if llm_config['async_scheduling'] else 'off'} "
            f"({llm_config['async_scheduling_rule']}), {stats.num_overlapped_steps} of {stats.num_steps} steps overlapped, "
            f"{stats.num_accepted_tokens} of {stats.num_drafted_tokens} drafted tokens accepted"
        )
    for failure in failures[:1]:
        say(f"\n{type(failure).__name__}: {failure}\n")
    say(f"{len(items) - len(failures)} of {len(items)} prompts are identical")
    write_json(arguments.json, result)
    return 1 if failures else 2 if refused else 0


def _compare(items: list[WorkItem], runs: dict[str, Run], engines: tuple[LLM, LLM]) -> list[ValidationError]:
    """One failure for each prompt that differs, in order."""
    failures = []
    for item in items:
        sides: list[Any] = [Run(side, {item.request_id: run.outputs[item.request_id]}, run.stats) for side, run in runs.items()]
        try:
            assert_same_outputs(sides[0], sides[1], case="diff", engines=engines)
        except ValidationError as failure:
            failures.append(failure)
    return failures
