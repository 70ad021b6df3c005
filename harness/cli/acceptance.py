"""`lockstep acceptance`: how often a drafter is right, by category of prompt and by position."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from engine import LLM
from harness.acceptance import ALL, CategorizedPrompt, by_category, categorized_items, embedded_prompts, table
from harness.cli.arguments import add_json, add_model, add_sampling, human_output, named_values, sampling_from, write_json
from harness.datasets.gsm8k import load_questions
from harness.prompts import question_prompts
from harness.workload import run_workload

__all__ = ["add_parser"]

DATASETS = ("embedded", "gsm8k")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("acceptance", help="measure how often a drafter is right", description=__doc__)
    add_model(parser)
    parser.add_argument(
        "--spec",
        required=True,
        metavar="JSON",
        help='speculative_config, such as \'{"method": "eagle", "model": "zoo:tiny-eagle", "num_speculative_tokens": 3}\'',
    )
    parser.add_argument(
        "--dataset",
        default="embedded",
        help="embedded (word problems and text tasks, the default), gsm8k, or a JSON Lines file with the fields prompt (or "
        "question) and, if there are several kinds, category",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="take the first N prompts of each category only")
    add_sampling(parser)
    parser.add_argument("--options", nargs="*", default=[], metavar="NAME=VALUE", help="options of LLM, such as num_threads=2")
    add_json(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    say = partial(print, file=human_output(arguments))
    try:
        spec = json.loads(arguments.spec)
    except json.JSONDecodeError as error:
        raise ValueError(
            f'--spec is no JSON ({error}); write it as {{"method": "ngram", "num_speculative_tokens": 3}}.'
        ) from error
    params = sampling_from(arguments)
    options = {"async_scheduling": None} | named_values(arguments.options)
    with LLM(arguments.model, speculative_config=spec, **options) as llm:
        prompts = _limited(_prompts(arguments.dataset, llm, arguments.model), arguments.limit)
        work = run_workload(llm, categorized_items(prompts, params), label="acceptance", audit=False)
        parts = by_category(work, llm.config.num_speculative_tokens)
        config = llm.config.as_record()
    say(f"{arguments.model} with {json.dumps(spec)}\nasynchronous scheduling {'on' if config['async_scheduling'] else 'off'}\n")
    say(table(parts))
    if not parts[ALL].num_drafts:
        say("\nNothing was drafted.")
    requests = [
        {"id": request_id, "category": request_id.partition(":")[2]} | asdict(completion.stats)
        for request_id, output in work.outputs.items()
        for completion in output.outputs
    ]
    result = {"config": config, "figures": {name: part.as_record() for name, part in parts.items()}, "requests": requests}
    write_json(arguments.json, result)
    return 0


def _prompts(dataset: str, llm: LLM, model: str) -> list[CategorizedPrompt]:
    if dataset == "embedded":
        return embedded_prompts(llm)
    if dataset == "gsm8k":
        questions = load_questions()
        category = "gsm8k" if questions.source.startswith("gsm8k") else "own questions"
        return [CategorizedPrompt(tuple(ids), category) for ids in question_prompts(model, questions.texts[:40])]
    path = Path(dataset)
    if not path.exists():
        raise ValueError(f"--dataset {dataset!r}: there is no such file; write a file or one of {', '.join(DATASETS)}.")
    encode = llm.get_tokenizer().encode
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [CategorizedPrompt(tuple(encode(_text_of(row, dataset))), str(row.get("category", "prompts"))) for row in rows]


def _text_of(row: Any, dataset: str) -> str:
    text = row.get("prompt", row.get("question")) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{dataset}: expected lines of JSON objects with the field prompt or question.")
    return text


def _limited(prompts: list[CategorizedPrompt], limit: int | None) -> list[CategorizedPrompt]:
    kept: list[CategorizedPrompt] = []
    counts: dict[str, int] = {}
    for prompt in prompts:
        counts[prompt.category] = counts.get(prompt.category, 0) + 1
        if limit is None or counts[prompt.category] <= limit:
            kept.append(prompt)
    if not kept:
        raise ValueError("there is no prompt; give a larger --limit or another --dataset.")
    return kept
