"""Random workloads on the toy model: whatever arrives, ends or is preempted when, every request says what it says alone.

Pools from the smallest possible one up, chunks from one token up, scripted accept patterns, arrivals and aborts; synchronous
and asynchronous; the engine's books are checked after every step (K-01, K-02, S-02, S-04, S-05, S-08, S-10 in one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine import LLM, SamplingParams
from harness.compare import assert_conservation, assert_prefixes_of, assert_same_outputs, assert_work_bounds
from harness.reference import make_reference
from harness.scripted import METHOD, PLUGIN, script
from harness.toy_model import toy_model_path
from harness.workload import Run, WorkItem, run_workload

MAX_MODEL_LEN = 64
PREFIX = [84, 104, 101, 32, 99, 97, 116, 32, 115, 97, 116, 46]

params = st.builds(
    SamplingParams,
    n=st.integers(1, 2),
    temperature=st.sampled_from([0.0, 0.0, 0.9]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.7]),
    seed=st.integers(-5, 5),
    max_tokens=st.sampled_from([1, 2, 3, 5, 8, 13, 20]),
    stop=st.sampled_from([None, "a", ["1", "\ufffd", "ab"]]),
    stop_token_ids=st.sampled_from([None, [70, 85], range(40, 120, 9)]),
    ignore_eos=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    logprobs=st.sampled_from([None, 0, 3]),
)
prompts = st.one_of(
    st.integers(0, len(PREFIX)).flatmap(lambda k: st.lists(st.integers(0, 258), max_size=9).map(lambda own: PREFIX[:k] + own)),
    st.lists(st.sampled_from([65, 66]), min_size=1, max_size=24),
).filter(bool)


@dataclass(frozen=True)
class Case:
    items: list[WorkItem]
    accept: list[int]
    options: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    items = []
    for index in range(draw(st.integers(1, 5))):
        given_params = draw(params)
        low = draw(st.sampled_from([0, 0, 0, 1, 3]))
        items.append(
            WorkItem(
                f"r{index}",
                tuple(draw(prompts)),
                replace(given_params, min_tokens=min(low, given_params.max_tokens or 0)),
                arrive_at_step=draw(st.sampled_from([0, 0, 1, 2, 5, 9])),
                abort_after_tokens=draw(st.sampled_from([None, None, None, 0, 1, 4])),
            )
        )
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    longest = max(len(item.prompt_token_ids) + (item.params.max_tokens or 0) for item in items)
    minimum = max(1, -(-(longest - 1) // block_size))
    depth = draw(st.sampled_from([0, 1, 2, 3, 5]))
    options: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_blocks": minimum + draw(st.sampled_from([0, 0, 1, 2, 4, 9, 60])),
        "max_num_seqs": draw(st.integers(1, 4)),
        "enable_prefix_caching": draw(st.booleans()),
    }
    if draw(st.booleans()):
        options["max_num_batched_tokens"] = draw(st.sampled_from([1, 2, 3, 5, 8, 17]))
    elif draw(st.booleans()):
        options |= {"max_num_batched_tokens": MAX_MODEL_LEN, "enable_chunked_prefill": False}
    if depth:
        options |= {"speculative_config": {"method": METHOD, "num_speculative_tokens": depth}, "plugins": (PLUGIN,)}
    accept = draw(st.lists(st.sampled_from([0, 1, 2, 99]), min_size=1, max_size=4))
    return Case(items, accept, options)


def check(case: Case) -> None:
    model = str(toy_model_path())
    common = {"max_model_len": MAX_MODEL_LEN, "num_threads": 1}
    reference = make_reference(model, common, case.items, num_beyond=6)
    items = [
        replace(item, params=replace(item.params, extra_args=script(reference.continuations[item.request_id], case.accept)))
        for item in case.items
    ]
    runs: list[Run] = []
    for asynchronous in (False, True):
        with LLM(model, **common, **case.options, async_scheduling=asynchronous) as llm:
            run = run_workload(llm, items, label="async" if asynchronous else "sync")
            if any(item.abort_after_tokens is None for item in items):
                assert_prefixes_of(reference.run, run, items, case="random")
            assert set(run.outputs) == {item.request_id for item in items}
            assert_conservation(run, case="random")
            runs.append(run)
            # What the aborted ones left behind in the prefix cache serves the same prompts again.
            whole = [replace(item, arrive_at_step=0, abort_after_tokens=None) for item in items]
            assert_same_outputs(reference.run, run_workload(llm, whole, label=f"{run.label}, again"), case="random")
    assert_work_bounds(runs[0], runs[1], case="random")


@settings(max_examples=25, deadline=None)
@given(cases())
def test_every_request_equals_itself_alone(case: Case) -> None:
    check(case)
