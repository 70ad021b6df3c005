"""Greedy answers to word problems: right often enough, and the same whatever the engine does to get them.

The model is the zoo's `tiny` unless `--accuracy-model` names another one. The controls damage the engine from outside. What
accuracy sees must lower it; what accuracy cannot see must show in the log-probabilities, which are compared exactly.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy import Accuracy, answer_problems, assert_at_least, assert_same_answers
from harness.compare import assert_async_was_on, assert_exercised, assert_same_outputs
from harness.datasets.word_problems import WordProblem, fixed_split
from harness.engines import open_engine
from harness.errors import AccuracyError, BluntCheckError, LogprobMismatchError, TokenMismatchError
from harness.faults.corruption import CORRUPTIONS
from harness.recording import Notes
from harness.stats import detectable_drop
from harness.transformers_reference import transformers_answers
from harness.workload import Run

FLOORS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("accuracy_floors.toml").read_text(encoding="utf-8"))
NUM_CONTROL = 150  # problems of each control
BASE: dict[str, Any] = {"max_model_len": 1024, "max_num_seqs": 32}
PLAIN = BASE | {"async_scheduling": False}
NGRAM = {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
# What must give the same answers as plain synchronous runs, and the counters that show that it happened.
PATHS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "async": ({}, ()),
    "ngram": ({"speculative_config": NGRAM}, ("num_drafts", "num_accepted_tokens")),
    "chunked": ({"max_num_batched_tokens": 48}, ("num_partial_prefills",)),
    "preempted": ({"num_kv_blocks": 90}, ("num_preemptions",)),
}
SEEN_BY_ACCURACY = ("block_lost", "generated_entry_lost", "wrong_digit")


@functools.lru_cache(maxsize=4)
def plain_run(model: str, n: int, logprobs: int | None = None) -> tuple[Accuracy, Run]:
    return run(model, PLAIN, fixed_split()[:n], label="plain", logprobs=logprobs)


def run(
    model: str, options: dict[str, Any], asked: Sequence[WordProblem], *, label: str, logprobs: int | None = None
) -> tuple[Accuracy, Run]:
    with open_engine(model, options) as llm:
        result = answer_problems(llm, asked, label=label, logprobs=logprobs)
        if options.get("async_scheduling") is None:
            assert_async_was_on(llm, result[1], case=label)
        return result


def note(record: Notes, name: str, accuracy: Accuracy, threshold: float | None = None) -> None:
    interval = accuracy.interval
    record.figure(name, accuracy.rate, n=accuracy.n, interval=(interval.low, interval.high), threshold=threshold)


@pytest.mark.parametrize("part", ["all", "seen", "held_out"])
def test_accuracy(part: str, accuracy_model: str, num_problems: int, record: Notes) -> None:
    """At or above the floor; `held_out` are combinations of operations that training never saw."""
    accuracy, _ = plain_run(accuracy_model, num_problems)
    if part != "all":
        accuracy = accuracy.where(part, held_out=part == "held_out")
    floor = FLOORS[part]
    note(record, f"accuracy, {part}", accuracy, threshold=floor["value"])
    for steps, of_steps in accuracy.by_steps().items():
        note(record, f"accuracy, {part}, {steps} steps", of_steps)
    record.figure("smallest drop that this n shows", detectable_drop(floor["value"], accuracy.n))
    assert_at_least(accuracy, floor, case=f"accuracy-{part}")


@pytest.mark.parametrize("path", PATHS)
def test_same_answers(path: str, accuracy_model: str, num_problems: int, record: Notes) -> None:
    """No discordant answer, and no other token either."""
    options, counters = PATHS[path]
    plain, plain_outputs = plain_run(accuracy_model, num_problems)
    other, outputs = run(accuracy_model, BASE | options, fixed_split()[:num_problems], label=path)
    record.activity(vars(outputs.stats))
    assert_exercised(outputs, *counters, case=path)
    counts = assert_same_answers(plain, other, case=path)
    record.count("requests_compared", assert_same_outputs(plain_outputs, outputs, case=path))
    note(record, f"accuracy, {path}", other)
    record.figure("discordant answers", counts.only_first + counts.only_second, n=counts.n, threshold=0)


def test_transformers_gives_the_same_answers(accuracy_model: str, num_problems: int, record: Notes) -> None:
    """An outside witness of the engine; slow, so a tenth of the problems (all of them in the tier nightly)."""
    n = num_problems if num_problems == 1000 else num_problems // 10
    plain, _ = plain_run(accuracy_model, num_problems)
    ours = Accuracy("engine", plain.answers[:n])
    theirs = transformers_answers(accuracy_model, fixed_split()[:n])
    counts = assert_same_answers(ours, theirs, case="transformers")
    record.count("requests_compared", n)
    record.figure("answers unlike transformers'", counts.only_first + counts.only_second, n=n, threshold=0)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruption_is_seen(kind: str, accuracy_model: str, record: Notes) -> None:
    """The check that must see this corruption does; what the others see is recorded."""
    plain, plain_outputs = plain_run(accuracy_model, NUM_CONTROL, logprobs=0)
    corruption = CORRUPTIONS[kind]
    corruption.num_reached = 0
    options = BASE | {"plugins": corruption.plugin}
    corrupt, outputs = run(accuracy_model, options, fixed_split()[:NUM_CONTROL], label=kind, logprobs=0)
    num_damaged = corruption.num_reached
    same_text = sum(a.text == b.text for a, b in zip(plain.answers, corrupt.answers, strict=True))
    seen_by_logits = sees(
        lambda: assert_same_outputs(plain_outputs, outputs, case=kind), LogprobMismatchError, TokenMismatchError
    )
    seen_by_answers = sees(lambda: assert_same_answers(plain, corrupt, case=kind), AccuracyError)
    seen_by_floor = sees(lambda: assert_at_least(corrupt, FLOORS["all"], case=kind), AccuracyError)
    note(record, f"accuracy, {kind}", corrupt)
    record.figure(f"identical text, {kind}", same_text / plain.n, n=plain.n)
    record.figure(f"requests damaged, {kind}", num_damaged, n=plain.n)
    record.activity({"seen_by_logits": seen_by_logits, "seen_by_answers": seen_by_answers, "seen_by_floor": seen_by_floor})
    record.count("requests_compared", plain.n)
    wanted = seen_by_floor and seen_by_answers if kind in SEEN_BY_ACCURACY else seen_by_logits
    if num_damaged < plain.n // 2 or not wanted:
        raise BluntCheckError(
            f"{corruption.summary}: {num_damaged} of {plain.n} requests: {same_text} texts are identical, accuracy went from "
            f"{plain.rate:.1%} to {corrupt.rate:.1%}, and the check that should have seen it did not",
            case=kind,
            expected=plain.rate,
            actual=corrupt.rate,
            num_damaged=num_damaged,
        )


def sees(check: Any, *errors: type[Exception]) -> bool:
    try:
        check()
    except errors:
        return True
    return False
