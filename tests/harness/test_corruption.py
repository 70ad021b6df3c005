"""Each corruption reaches the computation, damages every request once, and leaves the engine's books in order."""

from __future__ import annotations

import pytest

from harness.compare import assert_same_outputs
from harness.engines import open_engine
from harness.errors import LogprobMismatchError, TokenMismatchError
from harness.faults.corruption import CORRUPTIONS
from harness.workload import Run, SamplingParams, WorkItem, run_workload

BASE = {"max_model_len": 128, "block_size": 8, "enable_prefix_caching": False}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0)
ITEMS = [WorkItem(f"r{i}", tuple(f"{i}7 birds and 12{i} fish met in the garden".encode()), GREEDY) for i in range(4)]


@pytest.fixture(scope="module")
def plain(toy_model: str) -> Run:
    return run(toy_model, {})


def run(model: str, options: dict[str, object]) -> Run:
    with open_engine(model, BASE | options) as llm:
        return run_workload(llm, ITEMS, label=str(options))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruption_changes_what_is_computed(kind: str, asynchronous: bool, toy_model: str, plain: Run) -> None:
    CORRUPTIONS[kind].num_reached = 0
    damaged = run(toy_model, {"plugins": CORRUPTIONS[kind].plugin, "async_scheduling": asynchronous})
    assert CORRUPTIONS[kind].num_reached == len(ITEMS)
    with pytest.raises((LogprobMismatchError, TokenMismatchError)):
        assert_same_outputs(plain, damaged, case=kind)


def test_the_same_corruption_twice_is_the_same(toy_model: str) -> None:
    runs = [run(toy_model, {"plugins": CORRUPTIONS["block_lost"].plugin}) for _ in range(2)]
    assert assert_same_outputs(*runs, case="twice") == len(ITEMS)


def test_a_watching_runner_that_changes_nothing_changes_nothing(toy_model: str) -> None:
    """The control of the controls: without digits there is no wrong digit, and every bit is as before."""
    items = [WorkItem("r", tuple(b"no digits here"), GREEDY)]
    CORRUPTIONS["wrong_digit"].num_reached = 0
    runs = []
    for plugins in ((), (CORRUPTIONS["wrong_digit"].plugin,)):
        with open_engine(toy_model, BASE | {"plugins": plugins}) as llm:
            runs.append(run_workload(llm, items, label=str(plugins)))
    assert assert_same_outputs(*runs, case="none") == 1
    assert CORRUPTIONS["wrong_digit"].num_reached == 0
