"""`lockstep generate`: completions of prompts, and what the engine did for them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
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

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("generate", help="complete prompts", description=__doc__)
    add_model(parser)
    add_prompts(parser)
    add_sampling(parser)
    parser.add_argument("--options", nargs="*", default=[], metavar="NAME=VALUE", help="options of LLM, such as num_threads=2")
    add_json(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    say = partial(print, file=human_output(arguments))
    params = sampling_from(arguments)
    with LLM(arguments.model, **named_values(arguments.options)) as llm:
        prompts = read_prompts(arguments, llm.get_tokenizer())
        outputs = llm.generate(prompts, params, on_error="return")
        result: dict[str, Any] = {"config": llm.config.as_record(), "stats": asdict(llm.stats), "outputs": []}
    for index, output in enumerate(outputs):
        if output.error is not None:
            say(f"--- {index}: {output.error}")
        for completion in output.outputs:
            reason = completion.finish_reason or ""
            say(f"--- {index}: {len(completion.token_ids)} tokens, {reason}\n{completion.text}")
        result["outputs"].append(
            {
                "error": str(output.error) if output.error is not None else None,
                "prompt_token_ids": output.prompt_token_ids,
                "completions": [asdict(completion) for completion in output.outputs],
            }
        )
    stats = result["stats"]
    mode = "on" if result["config"]["async_scheduling"] else "off"
    say(
        f"--- {stats['num_generated_tokens']} tokens; asynchronous scheduling {mode}, "
        f"{stats['num_overlapped_steps']} of {stats['num_steps']} steps overlapped"
    )
    write_json(arguments.json, result)
    return 2 if any(output.error is not None for output in outputs) else 0
