"""Acceptance of drafts as one run of an engine shows it: rate, length and rates by position, with intervals, by category.

The definitions are `engine.metrics.DEFINITIONS`. Everything is derived from the drafts of each request, so that any part of a
run (a category, some requests) can be looked at alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import LLM, SamplingParams
from engine.metrics import DEFINITIONS, acceptance_length, acceptance_rate
from harness.datasets.text_tasks import TEXT_TASKS
from harness.datasets.word_problems import CATEGORY as MATH
from harness.datasets.word_problems import fixed_split
from harness.errors import AcceptanceLengthError, AcceptanceRateError, FeatureNotExercisedError
from harness.prompts import prompt_text
from harness.stats import Interval, acceptance_length_interval
from harness.workload import Run, WorkItem, run_workload

__all__ = [
    "ALL",
    "Acceptance",
    "CategorizedPrompt",
    "assert_within",
    "by_category",
    "categorized_items",
    "embedded_prompts",
    "measure",
    "table",
]

ALL = "all"
Drafts = tuple[tuple[int, int], ...]  # of one request: (drafted, accepted) for each draft


@dataclass(frozen=True)
class CategorizedPrompt:
    token_ids: tuple[int, ...]
    category: str


@dataclass(frozen=True)
class Acceptance:
    """Of some requests. `by_request`: the drafts of each of them; a request without drafts counts as one without."""

    by_request: tuple[Drafts, ...]
    num_speculative_tokens: int

    @property
    def num_requests(self) -> int:
        return len(self.by_request)

    @property
    def num_drafts(self) -> int:
        return sum(map(len, self.by_request))

    @property
    def num_drafted(self) -> int:
        return sum(drafted for drafts in self.by_request for drafted, _ in drafts)

    @property
    def num_accepted(self) -> int:
        return sum(accepted for drafts in self.by_request for _, accepted in drafts)

    @property
    def rate(self) -> float | None:
        return acceptance_rate(self.num_accepted, self.num_drafted)

    @property
    def length(self) -> float:
        return acceptance_length(self.num_accepted, self.num_drafts)

    @property
    def per_position(self) -> list[float]:
        """For each position: accepted there / drafts; empty without drafts."""
        accepted = [count for drafts in self.by_request for _, count in drafts]
        return (
            [sum(count > i for count in accepted) / len(accepted) for i in range(self.num_speculative_tokens)]
            if accepted
            else []
        )

    @property
    def interval(self) -> Interval | None:
        """Of the length, by bootstrap over requests; None for fewer than two."""
        if self.num_requests < 2:
            return None
        return acceptance_length_interval([[count for _, count in drafts] for drafts in self.by_request]).interval

    def as_record(self) -> dict[str, Any]:
        interval = self.interval
        return {
            "requests": self.num_requests,
            "drafts": self.num_drafts,
            "drafted": self.num_drafted,
            "accepted": self.num_accepted,
            "rate": self.rate,
            "length": self.length,
            "interval": None if interval is None else [interval.low, interval.high],
            "per_position": self.per_position,
        }


def embedded_prompts(llm: LLM, *, num_math: int = 40, num_of_task: int = 8) -> list[CategorizedPrompt]:
    """Word problems of the fixed split and test examples of every text task, for the zoo's own tokenizers."""
    texts = [(problem.question, MATH) for problem in fixed_split()[:num_math]]
    texts += [
        (make(random.Random(f"text tasks/{name}/{i}"), "test").prompt, name)
        for name, make in TEXT_TASKS.items()
        for i in range(num_of_task)
    ]
    encode = llm.get_tokenizer().encode
    return [CategorizedPrompt(tuple(encode(prompt_text(text))), category) for text, category in texts]


def categorized_items(prompts: Sequence[CategorizedPrompt], params: SamplingParams) -> list[WorkItem]:
    return [WorkItem(f"{index}:{prompt.category}", prompt.token_ids, params) for index, prompt in enumerate(prompts)]


def by_category(run: Run, num_speculative_tokens: int) -> dict[str, Acceptance]:
    """Of a run of `categorized_items`: each category in order of appearance, and `ALL` of them."""
    found: dict[str, list[Drafts]] = {}
    for request_id, output in run.outputs.items():
        category = request_id.partition(":")[2]
        found.setdefault(category, []).extend(completion.stats.drafts for completion in output.outputs)
    everything = [drafts for part in found.values() for drafts in part]
    return {name: Acceptance(tuple(part), num_speculative_tokens) for name, part in {**found, ALL: everything}.items()}


def measure(llm: LLM, prompts: Sequence[CategorizedPrompt], params: SamplingParams, *, label: str) -> dict[str, Acceptance]:
    """Run the prompts and count. The run's own figures are those of `by_category`."""
    run = run_workload(llm, categorized_items(prompts, params), label=label, audit=False)
    return by_category(run, llm.config.num_speculative_tokens)


def assert_within(
    acceptance: Acceptance, bounds: Mapping[str, Any], *, case: str, num_speculative_tokens: int | None = None
) -> None:
    """Length and rate lie within `bounds`: `length = [floor, ceiling]`, `rate = [floor, ceiling]`, either may be absent.

    Raises `AcceptanceLengthError` or `AcceptanceRateError`; `FeatureNotExercisedError` where nothing was drafted.
    """
    if not acceptance.num_drafts:
        raise FeatureNotExercisedError(f"{case}: nothing was drafted", case=case)
    kinds = (("length", AcceptanceLengthError, acceptance.length), ("rate", AcceptanceRateError, acceptance.rate))
    for name, error, value in kinds:
        if name not in bounds:
            continue
        floor, ceiling = bounds[name]
        if value is None or not floor <= value <= ceiling:
            raise error(
                f"{case}: acceptance {name} {value:.3f} is outside of {floor} to {ceiling} "
                f"({acceptance.num_drafts} drafts, {acceptance.num_requests} requests; by position "
                f"{', '.join(f'{p:.2f}' for p in acceptance.per_position)})",
                case=case,
                expected=[floor, ceiling],
                actual=value,
                figures=acceptance.as_record(),
            )


def table(parts: Mapping[str, Acceptance]) -> str:
    """For people: a row for each part, and the definitions under it."""
    depth = max(part.num_speculative_tokens for part in parts.values())
    head = ["category", "requests", "drafts", "rate", "length", "95 % interval", *(f"pos {i}" for i in range(1, depth + 1))]
    rows = [head]
    for name, part in parts.items():
        interval = part.interval
        rows.append(
            [
                name,
                str(part.num_requests),
                str(part.num_drafts),
                "n/a" if part.rate is None else f"{part.rate:.1%}",
                f"{part.length:.2f}",
                "" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}",
                *(f"{p:.2f}" for p in part.per_position or [float("nan")] * depth),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join([*lines, "", DEFINITIONS])
