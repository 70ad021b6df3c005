"""A scenario: an engine's options and the requests that arrive, drawn from a seed by an adversary, and its judgement."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from engine import LLM, EngineStats, SamplingParams
from harness.compare import (
    assert_acceptance_exactly,
    assert_conservation,
    assert_no_wasted_work,
    assert_prefix_hits,
    assert_prefixes_of,
)
from harness.errors import FeatureNotExercisedError
from harness.scripted import METHOD, PLUGIN, script
from harness.simulation.hash_model import PLUGINS
from harness.simulation.truth import Truth, true_run
from harness.toy_model import toy_model_path
from harness.workload import WorkItem, in_turn, run_workload

__all__ = ["Scenario", "check_scenario", "draw_scenario"]

MAX_MODEL_LEN = 64


@dataclass(frozen=True)
class Scenario:
    options: dict[str, Any]
    """Of the engine, but for the model, the plugins and the method."""
    items: tuple[WorkItem, ...]
    accept: tuple[int, ...] = (0,)
    """How many drafts are right in each round."""
    num_speculative_tokens: int = 0
    num_rounds: int = 1
    """How often the same requests come, under the same ids, to the same engine."""
    is_in_turn: bool = False
    """Each request comes when the one before has ended, so that it is known what the prefix cache must find."""


def draw_scenario(seed: int) -> Scenario:
    rng = random.Random(seed)
    kind = rng.choices(("any", "crowded", "in turn"), (0.6, 0.3, 0.1))[0]
    items = _draw_items(rng, is_crowded=kind == "crowded")
    block_size = rng.choice((1, 2, 3, 4, 4, 8))
    longest = max(len(item.prompt_token_ids) + (item.params.max_tokens or 0) for item in items)
    minimum = -(-(min(longest, MAX_MODEL_LEN) - 1) // block_size)
    options: dict[str, Any] = {
        "seed": rng.randrange(2**16),
        "max_model_len": MAX_MODEL_LEN,
        "block_size": block_size,
        "num_kv_blocks": max(1, minimum) + rng.choice((0, 0, 0, 1, 1, 2, 4, 9, 60)),
        "max_num_seqs": rng.choice((1, 2, 3, 4, 4)),
        "enable_prefix_caching": rng.random() < 0.7,
        "async_scheduling": None if rng.random() < 0.8 else False,
    }
    batched = rng.choice((1, 2, 3, 5, 8, 17, 64, 64))
    options["max_num_batched_tokens"] = batched
    if batched == MAX_MODEL_LEN and rng.random() < 0.3:
        options["enable_chunked_prefill"] = False
    depth = rng.choice((0, 1, 2, 3, 5, 9))
    accept = tuple(rng.choice((0, 1, 2, 99)) for _ in range(rng.randint(1, 4)))
    if kind == "crowded":
        options |= {"num_kv_blocks": max(1, minimum) + rng.choice((0, 1)), "max_num_seqs": rng.choice((2, 3, 4))}
    elif kind == "in turn":
        items = tuple(in_turn([replace(item, abort_after_tokens=None, params=replace(item.params, n=1)) for item in items]))
        options |= {"enable_prefix_caching": True, "num_kv_blocks": len(items) * MAX_MODEL_LEN}
    num_rounds = 1 + (rng.random() < 0.2 and kind != "in turn")
    return Scenario(options, items, accept, depth, num_rounds, kind == "in turn")


def _draw_items(rng: random.Random, *, is_crowded: bool) -> tuple[WorkItem, ...]:
    """Crowded: short prompts with long answers, at once, so that they outgrow the pool."""
    prefix = [rng.randrange(256) for _ in range(12)]
    items: list[WorkItem] = []
    for index in range(rng.randint(2, 5) if is_crowded else rng.randint(1, 5)):
        own = [rng.randrange(256) for _ in range(rng.randint(1, 8))]
        prompt = prefix[: rng.choice((0, 0, 4, 8, 8, 12))] + own
        arrival = rng.choice((0, 1) if is_crowded else (0, 0, 0, 1, 2, 5, 9, 20))
        params = _draw_params(rng, (13, 20, 30) if is_crowded else (1, 2, 3, 5, 8, 13, 20))
        if items and rng.random() < 0.3:  # a conversation goes on, or the same comes again
            before = rng.choice(items)
            said = Truth.of(before.prompt_token_ids, before.params, 0, MAX_MODEL_LEN, 0).token_ids
            follow_up = [*before.prompt_token_ids, *said[: rng.randint(0, len(said))], *own[: rng.randint(0, 3)]]
            prompt = follow_up[: MAX_MODEL_LEN - 32]
            arrival += rng.choice((0, 10, 30))
        params = _with_a_true_stop(rng, prompt, params)
        abort = rng.choice((0, 1, 3, 6)) if rng.random() < 0.15 else None
        items.append(WorkItem(f"r{index}", tuple(prompt), params, arrival, abort))
    return tuple(items)


def _draw_params(rng: random.Random, lengths: tuple[int, ...]) -> SamplingParams:
    max_tokens = rng.choice(lengths)
    is_sampled = rng.random() < 0.25
    return SamplingParams(
        n=2 if rng.random() < 0.1 else 1,
        temperature=rng.choice((0.7, 1.3)) if is_sampled else 0.0,
        top_k=rng.choice((0, 0, 4)),
        top_p=rng.choice((1.0, 1.0, 0.8)),
        min_p=rng.choice((0.0, 0.0, 0.05)),
        seed=rng.randrange(-9, 9),
        max_tokens=max_tokens,
        min_tokens=min(max_tokens, rng.choice((0, 0, 0, 2, 4))),
        ignore_eos=rng.random() < 0.3,
    )


def _with_a_true_stop(rng: random.Random, prompt: Sequence[int], params: SamplingParams) -> SamplingParams:
    """Often a stop id that really comes, anywhere up to the last token."""
    if rng.random() < 0.5:
        return params
    said = Truth.of(prompt, params, 0, MAX_MODEL_LEN, 0).token_ids
    return replace(params, stop_token_ids=[rng.choice(said)]) if said else params


def check_scenario(scenario: Scenario, plugins: Sequence[str] = ()) -> EngineStats:
    """Run it with the engine's integrity checked after every step; raises what is wrong, returns what happened.

    `plugins` come last, so a fault replaces the parts that the simulation has put in.
    """
    depth = scenario.num_speculative_tokens
    truths = {
        item.request_id: [
            Truth.of(item.prompt_token_ids, item.params, index, MAX_MODEL_LEN, depth + 1) for index in range(item.params.n)
        ]
        for item in scenario.items
    }
    options = dict(scenario.options)
    if depth:
        options["speculative_config"] = {"method": METHOD, "num_speculative_tokens": depth}
    case = "simulation"
    items = in_turn(scenario.items) if scenario.is_in_turn else scenario.items
    with LLM(
        str(toy_model_path()), plugins=(PLUGIN, *PLUGINS, *plugins), skip_tokenizer_init=True, num_threads=1, **options
    ) as llm:
        for _ in range(scenario.num_rounds):
            scripted = [_scripted(item, truths[item.request_id], scenario.accept) for item in items]
            run = run_workload(llm, scripted, label="simulation")
            truth = true_run(items, truths)
            assert_prefixes_of(truth, run, items, case=case)
            assert_conservation(run, case=case)
            assert_no_wasted_work(run, asynchronous=llm.config.async_scheduling, case=case)
            if scenario.is_in_turn and options["enable_prefix_caching"]:
                sizes = {"block_size": options["block_size"], "num_blocks": options["num_kv_blocks"]}
                assert_prefix_hits(truth, run, items, **sizes, case=case)
            if depth and len(set(scenario.accept)) == 1 and scenario.accept[0] in (0, 99):
                with suppress(FeatureNotExercisedError):  # too short to draft
                    assert_acceptance_exactly(run, int(scenario.accept[0] > 0), case=case)
        return llm.stats


def _scripted(item: WorkItem, truths: Sequence[Truth], accept: tuple[int, ...]) -> WorkItem:
    known = [truth.token_ids + truth.beyond for truth in truths]
    return replace(item, params=replace(item.params, extra_args=script(known, accept)))
