"""A draft model in one run: acceptance rate, acceptance length and accuracy, with asynchronous scheduling on by default.

The scenario of the field's own end-to-end test, whose default and explicit paths had drifted apart for `draft_model`. There it
needs a GPU, downloads and tolerances; here a run must give exactly the answers of the plain engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.acceptance import Acceptance, assert_within
from harness.accuracy import Accuracy, answer_problems, assert_same_answers
from harness.compare import (
    assert_acceptance_exactly,
    assert_async_was_on,
    assert_conservation,
    assert_exercised,
    assert_same_drafts,
    assert_same_outputs,
)
from harness.datasets.word_problems import fixed_split
from harness.engines import open_engine
from harness.quantized import dequantized_copy
from harness.recording import Notes
from harness.workload import Run
from harness.workloads import BLOCK_SIZE

TARGET = "zoo:tiny"
NUM_PROBLEMS = 60
OPTIONS: Mapping[str, Any] = {"max_model_len": 512, "block_size": BLOCK_SIZE}


@dataclass(frozen=True)
class Scenario:
    """`exact_rate`: what every request must have; `bounds`: see `assert_within`, from the measurement beside them."""

    config: Mapping[str, Any]
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    exact_rate: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)  # further options of the target


def draft(model: str, depth: int, **more: Any) -> dict[str, Any]:
    return {"method": "draft_model", "model": model, "num_speculative_tokens": depth, **more}


SCENARIOS: dict[str, Scenario] = {
    "same-model": Scenario(draft(TARGET, 3), exact_rate=1),
    "small-draft": Scenario(draft("zoo:tiny-draft", 3), {"length": (2.4, 3.8)}),
    "smaller-draft": Scenario(draft("zoo:tiny-draft-small", 3), {"length": (1.5, 3.2)}),
    "stochastic": Scenario(
        draft("zoo:tiny-draft", 3, draft_sample_method="probabilistic"),
        {"length": (1.5, 3.8)},
        params={"temperature": 0.5, "seed": 5},
    ),
    "parallel-drafting": Scenario(draft("zoo:tiny-pard", 3, parallel_drafting=True), {"length": (1.5, 3.8)}),
    "short-draft": Scenario(draft("zoo:tiny-draft", 3, max_model_len=150), {"length": (1.0, 3.8)}),
}
for _method in ("int8", "fp8"):
    SCENARIOS |= {
        f"quantized-target-{_method}": Scenario(
            draft("zoo:tiny-draft", 3), {"length": (2.4, 3.8)}, target={"quantization": _method}
        ),
        f"quantized-draft-{_method}": Scenario(draft("zoo:tiny-draft", 3, quantization=_method), {"length": (2.4, 3.8)}),
        f"quantized-both-{_method}": Scenario(
            draft(TARGET, 3, quantization=_method), exact_rate=1, target={"quantization": _method}
        ),
    }

Answers = dict[str, Accuracy]


@pytest.fixture(scope="module")
def plain() -> Answers:
    """Answers without speculation, by sampling parameters and options of the target."""
    return {}


@pytest.mark.parametrize("name", SCENARIOS)
def test_acceptance_and_accuracy(name: str, plain: Answers, record: Notes) -> None:
    scenario = SCENARIOS[name]
    problems = fixed_split()[:NUM_PROBLEMS]
    options = OPTIONS | scenario.target
    key = repr((scenario.params, scenario.target))
    if key not in plain:
        with open_engine(TARGET, options | {"async_scheduling": False}) as llm:
            plain[key], _ = answer_problems(llm, problems, label="plain", **scenario.params)
    with open_engine(TARGET, options | {"speculative_config": scenario.config}) as llm:
        accuracy, run = answer_problems(llm, problems, label=name, **scenario.params)
        assert_async_was_on(llm, run, case=name)
        record.config(llm.config.as_record())
        depth = llm.config.num_speculative_tokens
    assert_exercised(run, "num_drafts", case=name)
    assert_conservation(run, case=name)
    assert_same_answers(plain[key], accuracy, case=name)
    acceptance = Acceptance(tuple(o.outputs[0].stats.drafts for o in run.outputs.values()), depth)
    assert_within(acceptance, scenario.bounds, case=name)
    if scenario.exact_rate is not None:
        assert_acceptance_exactly(run, scenario.exact_rate, case=name)
    interval = acceptance.interval
    record.figure("accuracy", accuracy.rate, n=accuracy.n, interval=(accuracy.interval.low, accuracy.interval.high))
    record.figure("acceptance_rate", acceptance.rate, n=acceptance.num_drafted)
    record.figure(
        "acceptance_length",
        acceptance.length,
        n=acceptance.num_requests,
        interval=None if interval is None else (interval.low, interval.high),
    )
    record.count("answers_compared", len(problems))
    record.activity(asdict(run.stats))


@pytest.mark.parametrize("rounded", ["target", "draft"])
@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_quantized_is_its_dequantized_copy(method: str, rounded: str, tmp_path: Path, record: Notes) -> None:
    """The same tokens and the same drafts as with the rounded weights in float32: no bit of the arithmetic differs."""
    problems = fixed_split()[:NUM_PROBLEMS]
    config = draft("zoo:tiny-draft", 3)
    if rounded == "target":
        copy = dequantized_copy(TARGET, tmp_path / "copy", method)
        runs = [(TARGET, {"quantization": method, "speculative_config": config}), (str(copy), {"speculative_config": config})]
    else:
        copy = dequantized_copy("zoo:tiny-draft", tmp_path / "copy", method)
        configs = [config | {"quantization": method}, config | {"model": str(copy)}]
        runs = [(TARGET, {"speculative_config": c}) for c in configs]
    results: list[Run] = []
    for model, options in runs:
        with open_engine(model, OPTIONS | options) as llm:
            results.append(answer_problems(llm, problems, label=f"{method} {rounded}")[1])
            assert_async_was_on(llm, results[-1], case=f"{method}-{rounded}")
    quantized, dequantized = results
    assert_exercised(quantized, "num_drafts", case=f"{method}-{rounded}")
    assert_same_outputs(dequantized, quantized, case=f"{method}-{rounded}")
    assert_same_drafts(dequantized, quantized, case=f"{method}-{rounded}")
    record.count("requests_compared", len(problems))
    record.activity(asdict(quantized.stats))
