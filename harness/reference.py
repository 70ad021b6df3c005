"""What every run must reproduce: each request alone, synchronous, without speculation, prefix cache or pressure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine import LLM, SamplingParams
from harness.engines import open_engine
from harness.workload import Run, WorkItem, run_one_at_a_time

__all__ = ["Reference", "References", "make_reference"]

PLAIN = {"async_scheduling": False, "enable_prefix_caching": False, "max_num_seqs": 4}


@dataclass(frozen=True)
class Reference:
    run: Run
    continuations: dict[str, list[list[int]]]
    """For each request and completion: its tokens, and what the model would say behind the end, as far as asked for."""


def make_reference(model: str, options: Mapping[str, Any], items: Sequence[WorkItem], *, num_beyond: int) -> Reference:
    """Run the items one at a time on a plain engine.

    `options`: what belongs to the model (length, dtype). `num_beyond` tokens behind each end are found by asking again with the
    completion as the prompt: a token depends on what stands before it and on its address (seed, sample, position) alone.
    """
    with open_engine(model, PLAIN | dict(options)) as llm:
        run = run_one_at_a_time(llm, items, label="one at a time")
        continuations = {
            item.request_id: [
                completion.token_ids + _beyond(llm, item, completion.index, completion.token_ids, num_beyond)
                for completion in run.outputs[item.request_id].outputs
            ]
            for item in items
        }
    return Reference(run, continuations)


class References:
    """Reference runs, each made once."""

    def __init__(self) -> None:
        self._known: dict[object, Reference] = {}

    def __call__(self, model: str, options: Mapping[str, Any], items: Sequence[WorkItem], num_beyond: int) -> Reference:
        key = (model, tuple(sorted(options.items())), tuple(items), num_beyond)
        if key not in self._known:
            self._known[key] = make_reference(model, options, items, num_beyond=num_beyond)
        return self._known[key]


def _beyond(llm: LLM, item: WorkItem, index: int, token_ids: list[int], count: int) -> list[int]:
    prompt = [*item.prompt_token_ids, *token_ids]
    room = min(count, llm.config.max_model_len - len(prompt))
    is_addressed = item.params.is_greedy or item.params.seed is not None
    if room < 1 or not is_addressed:
        return []
    params: SamplingParams = replace(
        item.params, n=index + 1, max_tokens=room, min_tokens=0, stop=None, stop_token_ids=None, ignore_eos=True, logprobs=None
    )
    return llm.generate([prompt], params, use_tqdm=False)[0].outputs[index].token_ids
