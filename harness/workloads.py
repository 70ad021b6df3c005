"""The requests that the suites send: prompts that meet the boundaries of blocks and chunks, and sets of sampling parameters."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine import SamplingParams
from engine.checkpoint import resolve_model
from engine.tokenizer import load_tokenizer
from harness.datasets.text_tasks import TEXT_TASKS
from harness.datasets.word_problems import fixed_split
from harness.prompts import prompt_text
from harness.workload import Run, WorkItem, in_turn

BLOCK_SIZE = 8
SHARED_PREFIX = 2 * BLOCK_SIZE  # tokens that every other prompt begins with
# (prompt tokens behind the shared prefix or in all, max_tokens). Prompt lengths meet every residue that matters modulo the
# block size; completion lengths run from one token over a few verify windows to several blocks.
SHAPES = ((1, 28), (7, 1), (8, 13), (9, 31), (5, 2), (8, 21), (15, 34), (23, 6))

SamplingSet = Callable[[int, int], SamplingParams]
"""(index of the request, max_tokens) -> its parameters."""

SAMPLING: dict[str, SamplingSet] = {
    "greedy": lambda i, m: SamplingParams(temperature=0, max_tokens=m),
    "greedy-ignore-eos": lambda i, m: SamplingParams(temperature=0, max_tokens=m, ignore_eos=True),
    "temperature": lambda i, m: SamplingParams(temperature=0.9, seed=100 + i, max_tokens=m),
    "top-k": lambda i, m: SamplingParams(temperature=1.3, top_k=1 + i, seed=200 + i, max_tokens=m),
    "top-p": lambda i, m: SamplingParams(temperature=1.0, top_p=0.35 + 0.08 * i, seed=330 + i, max_tokens=m),
    "min-p": lambda i, m: SamplingParams(temperature=1.5, min_p=0.02 + 0.03 * i, seed=400 + i, max_tokens=m),
    "all-filters": lambda i, m: SamplingParams(
        temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=500 + i, max_tokens=m, min_tokens=min(m, 3)
    ),
    "stop-strings": lambda i, m: SamplingParams(
        temperature=0.7, seed=600 + i, max_tokens=m, stop=["a", "4", "%Z"], include_stop_str_in_output=bool(i % 2)
    ),
    "stop-ids": lambda i, m: SamplingParams(
        temperature=0.7, seed=700 + i, max_tokens=m, stop_token_ids=range(40, 126, 21), min_tokens=min(m, 9 + i)
    ),
    "logprobs": lambda i, m: SamplingParams(
        temperature=0.8, top_k=30, seed=900 + i, max_tokens=m, min_tokens=min(m, 2), logprobs=i % 4
    ),
    "several": lambda i, m: SamplingParams(n=1 + i % 3, temperature=1.0, seed=800 + i, max_tokens=m),
    "unseeded": lambda i, m: SamplingParams(temperature=1.0, max_tokens=m),
}


def toy_items(sampling: str) -> list[WorkItem]:
    """Eight requests for the toy model (byte-level, printable ASCII), with the sampling set of that name."""
    return [
        WorkItem(f"r{i}", tuple(prompt), SAMPLING[sampling](i, max_tokens))
        for i, (prompt, max_tokens) in enumerate(zip(_toy_prompts(), (m for _, m in SHAPES), strict=True))
    ]


# The largest request needs 8 blocks of 8; with four at once, 9 blocks force preemption in every set.
POOLS = {"roomy": {"num_kv_blocks": 96}, "tight": {"num_kv_blocks": 9}}
PREFILLS = {"whole": {"max_num_batched_tokens": 512}, "chunked": {"max_num_batched_tokens": 18}}
# Fewer tokens in a step than the rows of a batch with drafts want: some rows have to wait, or lose drafts.
BUDGETS = {f"budget-{count}": {"max_num_batched_tokens": count} for count in (5, 6, 9)}
CACHES = {"nocache": {"enable_prefix_caching": False}, "cache": {"enable_prefix_caching": True}}
EXERCISED = {"tight": "num_preemptions", "chunked": "num_partial_prefills", "cache": "num_prefix_hits"}
TOY = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "max_model_len": 128}


def conversation_items(first: Sequence[WorkItem], said: Run) -> list[WorkItem]:
    """The first requests, and for each three that go on with what was said: to the end, a token before it, and half of it.

    They come in turn, and each asks for as many tokens as fill a block to its last place, to the place before, and beyond.
    """
    items = list(first)
    for item in first:
        answer = said.outputs[item.request_id].outputs[0].token_ids
        for index, count in enumerate((len(answer), len(answer) - 1, len(answer) // 2)):
            prompt = (*item.prompt_token_ids, *answer[:count], 65 + index)
            to_the_end = BLOCK_SIZE - len(prompt) % BLOCK_SIZE
            params = replace(item.params, max_tokens=to_the_end + (0, BLOCK_SIZE, 3)[index], ignore_eos=True)
            items.append(WorkItem(f"{item.request_id}-{index}", prompt, params))
            again = (*prompt, *range(66, 66 + BLOCK_SIZE))
            items.append(WorkItem(f"{item.request_id}-{index}-again", again, replace(params, max_tokens=5)))
    return in_turn(items)


# Completion lengths of the requests to a real checkpoint.
REAL_MAX_TOKENS = (24, 14, 20, 1, 18, 10)


def real_items(sampling: str, prompts: Sequence[Sequence[int]]) -> list[WorkItem]:
    """Six requests with real questions, the last one a repetition of the first, so that a prefix is found again."""
    chosen = [*prompts[: len(REAL_MAX_TOKENS) - 1], prompts[0]]
    return [
        WorkItem(f"q{i}", tuple(prompt), SAMPLING[sampling](i, max_tokens))
        for i, (prompt, max_tokens) in enumerate(zip(chosen, REAL_MAX_TOKENS, strict=True))
    ]


ZOO_TARGETS = ("zoo:tiny", "zoo:tiny-qwen3")


def zoo_prompts(model: str) -> list[list[int]]:
    """For a target of the zoo: three word problems, a long repetition and a copy."""
    rng = random.Random(20241)
    questions = [problem.question for problem in fixed_split()[:3]]
    questions += [TEXT_TASKS[name](rng, "test").prompt for name in ("repetition", "copy")]
    tokenizer = load_tokenizer(resolve_model(model))
    return [tokenizer.encode(prompt_text(question)) for question in questions]


def _toy_prompts() -> list[list[int]]:
    numbers = random.Random(20240)
    text = [[numbers.randrange(32, 127) for _ in range(SHARED_PREFIX + 32)] for _ in range(len(SHAPES) + 1)]
    return [
        text[-1][:SHARED_PREFIX] + own[:length] if i % 2 == 0 else own[:length]
        for i, (own, (length, _)) in enumerate(zip(text, SHAPES, strict=False))
    ]


def tight_pool(items: Sequence[WorkItem], block_size: int, num_speculative_tokens: int) -> int:
    """KV blocks for not quite two requests as they are admitted, so that the older soon needs what the younger holds."""
    lengths = sorted(len(item.prompt_token_ids) for item in items)
    at_admission = -(-(lengths[len(lengths) // 2] + 1 + num_speculative_tokens) // block_size)
    return 2 * at_admission - 2
