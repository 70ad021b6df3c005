"""Runs a failing case again, and makes it smaller while it fails in the same way: fewer, shorter, simpler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from engine import SamplingParams
from harness.equivalence import check_async_equals_sync
from harness.errors import ValidationError
from harness.reference import make_reference
from harness.replay import Replay
from harness.simulation.scenario import Scenario, check_scenario
from harness.workload import WorkItem

__all__ = ["run_replay", "shrink"]

# What a reader has not to think about: the first of them that still fails is taken.
SIMPLER_OPTIONS: dict[str, tuple[Any, ...]] = {
    "async_scheduling": (False,),
    "enable_prefix_caching": (False,),
    "enable_chunked_prefill": (True,),
    "max_num_batched_tokens": (512, 64),
    "num_kv_blocks": (256, 64),
    "max_num_seqs": (1, 2),
    "block_size": (4, 8, 2, 1),
    "seed": (0,),
}
PLAIN = SamplingParams(temperature=0, max_tokens=1, seed=0)
PLAIN_PARAMS: dict[str, Any] = {
    "min_tokens": 0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "temperature": 0.0,
    "seed": 0,
    "stop": None,
    "stop_token_ids": None,
    "logprobs": None,
}


def run_replay(replay: Replay) -> ValidationError | None:
    """Run it again; returns what the check raised."""
    depth = replay.num_speculative_tokens
    try:
        if replay.check == "simulation":
            options = dict(replay.options)
            plugins = tuple(options.pop("plugins", ()))
            accept = replay.drafting.accept or (0,)
            check_scenario(Scenario(options, replay.items, accept, depth, replay.num_rounds, replay.is_in_turn), plugins)
        else:
            plain = {k: v for k, v in replay.options.items() if k in ("max_model_len", "dtype", "quantization")}
            reference = make_reference(replay.model, plain, replay.items, num_beyond=depth + 1)
            check_async_equals_sync(
                replay.model,
                replay.options,
                replay.items,
                reference,
                case="replay",
                drafting=replay.drafting,
                num_speculative_tokens=depth,
                is_in_turn=replay.is_in_turn,
            )
    except ValidationError as error:
        return error
    return None


def shrink(replay: Replay, *, say: Callable[[str], None] = lambda text: None) -> Replay:
    """The smallest case that a greedy search finds; each trial runs the check. `ValueError` if it does not fail at all."""
    found = run_replay(replay)
    if found is None:
        raise ValueError("the replay passes here, so there is nothing to shrink")
    wanted = type(found)
    replay = replace(replay, exception=wanted.__name__, message=str(found))
    trials = 0
    tried = [_case(replay)]  # a case is tried once, so that the search ends whatever counts as smaller
    shrinking = True
    while shrinking:
        shrinking = False
        for smaller in _smaller(replay):
            if _case(smaller) in tried:
                continue
            tried.append(_case(smaller))
            trials += 1
            failure = _failure_of(smaller)
            if type(failure) is wanted:
                replay = replace(smaller, message=str(failure))
                say(f"{trials} trials: {len(replay.items)} requests, {replay.num_tokens} tokens")
                shrinking = True
                break
    return replay


def _case(replay: Replay) -> Replay:
    """Without what it raised."""
    return replace(replay, exception="", message="")


def _failure_of(replay: Replay) -> BaseException | None:
    try:
        return run_replay(replay)
    except Exception as error:  # noqa: BLE001 - a case that cannot run at all is none that fails in the same way
        return error


def _smaller(replay: Replay) -> Iterator[Replay]:
    """Candidates, the boldest first."""
    items = replay.items
    for half in _without_runs(items):
        yield replace(replay, items=half)
    if replay.num_rounds > 1:
        yield replace(replay, num_rounds=1)
    yield from _all_shorter(replay)
    for index, item in enumerate(items):
        for smaller in _smaller_items(item):
            if replay.is_in_turn and smaller.arrive_at_step != item.arrive_at_step:
                continue  # arrivals follow from the order
            yield replace(replay, items=(*items[:index], smaller, *items[index + 1 :]))
    if replay.num_speculative_tokens and replay.check == "simulation":
        for depth in (0, 1, replay.num_speculative_tokens - 1):
            if depth < replay.num_speculative_tokens:
                yield replace(replay, num_speculative_tokens=depth)
    elif replay.num_speculative_tokens > 1:
        yield replace(replay, num_speculative_tokens=1)
        yield replace(replay, num_speculative_tokens=replay.num_speculative_tokens - 1)
    accept = replay.drafting.accept
    for simpler in dict.fromkeys(((99,), (0,), accept[: len(accept) // 2], accept[1:])):
        if simpler and (len(simpler) < len(accept)):
            yield replace(replay, drafting=replace(replay.drafting, accept=simpler))
    for name, values in SIMPLER_OPTIONS.items():
        if name not in replay.options:
            continue
        now = replay.options[name]
        for value in values[: values.index(now) if now in values else None]:
            if name != "async_scheduling" or replay.check == "simulation":
                yield replace(replay, options={**replay.options, name: value})


def _all_shorter(replay: Replay) -> Iterator[Replay]:
    """All requests at once, and with them the pool: what one request gives up alone may leave the others too much room."""
    blocks: int = replay.options.get("num_kv_blocks") or 0
    for shorten in (_half, _one_less):
        for prompts, answers in ((True, True), (True, False), (False, True)):
            items = tuple(_shortened(item, shorten, prompts=prompts, answers=answers) for item in replay.items)
            if items == replay.items:
                continue
            yield replace(replay, items=items)
            for fewer in (_half, _one_less) if blocks else ():
                yield replace(replay, items=items, options={**replay.options, "num_kv_blocks": fewer(blocks)})


def _half(count: int) -> int:
    return max(1, count // 2)


def _one_less(count: int) -> int:
    return max(1, count - 1)


def _shortened(item: WorkItem, shorten: Callable[[int], int], *, prompts: bool, answers: bool) -> WorkItem:
    prompt, params = item.prompt_token_ids, item.params
    if prompts:
        prompt = prompt[: shorten(len(prompt))]
    if answers and params.max_tokens is not None:
        count = shorten(params.max_tokens)
        params = replace(params, max_tokens=count, min_tokens=min(params.min_tokens, count))
    return replace(item, prompt_token_ids=prompt, params=params)


def _without_runs(items: tuple[WorkItem, ...]) -> Iterator[tuple[WorkItem, ...]]:
    size = len(items) // 2
    while size:
        for start in range(0, len(items), size):
            if rest := items[:start] + items[start + size :]:
                yield rest
        size //= 2


def _smaller_items(item: WorkItem) -> Iterator[WorkItem]:
    prompt, params = item.prompt_token_ids, item.params
    simple = replace(PLAIN, max_tokens=params.max_tokens, ignore_eos=True)
    if params != simple:
        yield replace(item, params=simple)
    for length in dict.fromkeys((1, len(prompt) // 2, len(prompt) - 1)):
        if 0 < length < len(prompt):
            yield replace(item, prompt_token_ids=prompt[:length])
            yield replace(item, prompt_token_ids=prompt[-length:])
    most = params.max_tokens or 0
    for count in dict.fromkeys((1, most // 2, most - 1)):
        if 0 < count < most:
            low = min(params.min_tokens, count)
            yield replace(item, params=replace(params, max_tokens=count, min_tokens=low))
    if item.abort_after_tokens is not None:
        yield replace(item, abort_after_tokens=None)
    for step in dict.fromkeys((0, item.arrive_at_step // 2)):
        if step < item.arrive_at_step:
            yield replace(item, arrive_at_step=step)
    if params.n > 1:
        yield replace(item, params=replace(params, n=1))
    for name, value in PLAIN_PARAMS.items():
        if getattr(params, name) != value:
            yield replace(item, params=replace(params, **{name: value}))
