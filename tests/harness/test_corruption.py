"""Each corruption reaches the computation, damages every request once, and leaves the engine's books in order."""

from __future__ import annotations

import pytest

from harness.compare import assert_same_outputs
from harness.engines import open_engine
from harness.errors import LogprobMismatchError, TokenMismatchError
from harness.faults.corruption import CORRUPTIONS, corrupting_executor
from harness.workload import Run, SamplingParams, WorkItem, run_workload

DIGITS = tuple(range(ord("0"), ord("9") + 1))  # the toy model's tokens are bytes
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
    executor = corrupting_executor(kind, DIGITS)
    damaged = run(toy_model, {"distributed_executor_backend": executor, "async_scheduling": asynchronous})
    assert executor.runner_class.num_damaged == len(ITEMS)
    with pytest.raises((LogprobMismatchError, TokenMismatchError)):
        assert_same_outputs(plain, damaged, case=kind)


def test_the_same_corruption_twice_is_the_same(toy_model: str) -> None:
    runs = [run(toy_model, {"distributed_executor_backend": corrupting_executor("block_lost", DIGITS)}) for _ in range(2)]
    assert assert_same_outputs(*runs, case="twice") == len(ITEMS)


def test_a_watching_runner_that_changes_nothing_changes_nothing(toy_model: str, plain: Run) -> None:
    """The control of the controls: without digits there is no wrong digit, and every bit is as before."""
    executor = corrupting_executor("wrong_digit", ())
    assert assert_same_outputs(plain, run(toy_model, {"distributed_executor_backend": executor}), case="none") == len(ITEMS)
    assert executor.runner_class.num_damaged == 0


def test_unknown_corruption() -> None:
    with pytest.raises(ValueError, match="Did you mean 'block_lost'"):
        corrupting_executor("blocks_lost", DIGITS)
