"""Task accuracy of an engine on the embedded word problems: greedy, strict extraction, and comparisons answer by answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine import LLM, SamplingParams
from harness.datasets.word_problems import WordProblem
from harness.datasets.word_problems import problems as endless_problems
from harness.errors import AccuracyError, FeatureNotExercisedError
from harness.prompts import prompt_text
from harness.stats import Interval, Paired, paired, wilson_interval
from harness.workload import Run, WorkItem, run_workload

__all__ = [
    "MAX_TOKENS",
    "Accuracy",
    "Answer",
    "answer_problems",
    "assert_at_least",
    "assert_same_answers",
    "extract_answer",
    "judge",
    "problem_items",
    "shots",
]

MAX_TOKENS = 320  # the longest right answer of the fixed split has about 200
STRICT = re.compile(r"^#### (-?\d[\d,]*)$", re.MULTILINE)  # a line of its own, as in GSM8K's answers
NUM_SHOWN = 5  # discordant items in a message; all of them are in the evidence


@dataclass(frozen=True)
class Answer:
    problem: WordProblem
    value: int | None  # None: no line `#### N`
    text: str

    @property
    def is_right(self) -> bool:
        return self.value == self.problem.value


@dataclass(frozen=True)
class Accuracy:
    """What an engine answered, in the order of the problems."""

    label: str
    answers: tuple[Answer, ...]

    @property
    def n(self) -> int:
        return len(self.answers)

    @property
    def num_right(self) -> int:
        return sum(answer.is_right for answer in self.answers)

    @property
    def rate(self) -> float:
        return self.num_right / self.n

    @property
    def interval(self) -> Interval:
        """Wilson's, 95 %."""
        return wilson_interval(self.num_right, self.n)

    def where(self, label: str, **facts: Any) -> Accuracy:
        """The answers to problems with these attributes, such as `num_steps=3` or `held_out=True`."""
        chosen = (a for a in self.answers if all(getattr(a.problem, name) == value for name, value in facts.items()))
        return Accuracy(label, tuple(chosen))

    def by_steps(self) -> dict[int, Accuracy]:
        steps = sorted({answer.problem.num_steps for answer in self.answers})
        return {n: self.where(f"{n} steps", num_steps=n) for n in steps}


def extract_answer(text: str) -> int | None:
    """The number of the first line `#### N`; None if there is none. Nothing else counts."""
    found = STRICT.search(text)
    return int(found[1].replace(",", "")) if found else None


def shots(count: int) -> list[WordProblem]:
    """Worked examples for a few-shot prompt: of the split train, never of what is asked."""
    stream = endless_problems(0, "train")
    return [next(stream) for _ in range(count)]


def problem_items(llm: LLM, asked: Sequence[WordProblem], *, num_shots: int = 0, **params: Any) -> list[WorkItem]:
    """Requests, greedy unless `params` say otherwise, one for each problem, named after its place."""
    tokenizer = llm.get_tokenizer()
    examples = [problem.example for problem in shots(num_shots)]
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": MAX_TOKENS} | params)
    return [
        WorkItem(f"p{i}", tuple(tokenizer.encode(prompt_text(problem.question, examples))), sampling)
        for i, problem in enumerate(asked)
    ]


def judge(label: str, asked: Sequence[WordProblem], texts: Iterable[str]) -> Accuracy:
    """Grade one answer text for each problem. Raises `ValueError` if their numbers differ."""
    pairs = zip(asked, texts, strict=True)
    return Accuracy(label, tuple(Answer(problem, extract_answer(text), text) for problem, text in pairs))


def answer_problems(
    llm: LLM, asked: Sequence[WordProblem], *, label: str, num_shots: int = 0, **params: Any
) -> tuple[Accuracy, Run]:
    """Ask all problems at once. `params` go to `SamplingParams`."""
    run = run_workload(llm, problem_items(llm, asked, num_shots=num_shots, **params), label=label, audit=False)
    texts = [run.outputs[f"p{i}"].outputs[0].text for i in range(len(asked))]
    return judge(label, asked, texts), run


def assert_at_least(accuracy: Accuracy, floor: Mapping[str, Any], *, case: str) -> None:
    """Raise `AccuracyError` below `floor` (`value`, with `n` and `origin` for the message), carrying the wrong answers."""
    if accuracy.n == 0:
        raise FeatureNotExercisedError(f"{case}: no problem was asked", case=case)
    if accuracy.rate < floor["value"]:
        low, high = accuracy.interval.low, accuracy.interval.high
        wrong = [_shown(i, answer) for i, answer in enumerate(accuracy.answers) if not answer.is_right]
        raise AccuracyError(
            f"{case}: {accuracy.num_right} of {accuracy.n} right, {accuracy.rate:.1%} (95 % interval {low:.1%} to {high:.1%}); "
            f"the floor is {floor['value']:.1%} (n = {floor['n']}; {floor['origin']})\n" + _first(wrong),
            case=case,
            expected=floor["value"],
            actual=accuracy.rate,
            n=accuracy.n,
            wrong=wrong,
        )


def assert_same_answers(expected: Accuracy, actual: Accuracy, *, case: str) -> Paired:
    """Raise `AccuracyError` with the discordant items unless both gave the same answer to every problem."""
    if expected.n == 0:
        raise FeatureNotExercisedError(f"{case}: no problem was asked", case=case)
    if [a.problem for a in expected.answers] != [a.problem for a in actual.answers]:
        raise ValueError("the two runs answered different problems")
    counts = paired([a.is_right for a in expected.answers], [a.is_right for a in actual.answers])
    discordant = [
        {**_shown(i, a), "actual": b.value, "actual_text": b.text}
        for i, (a, b) in enumerate(zip(expected.answers, actual.answers, strict=True))
        if a.value != b.value
    ]
    if discordant:
        raise AccuracyError(
            f"{case}: {actual.label} answers {len(discordant)} of {expected.n} problems differently from {expected.label} "
            f"(right only there {counts.only_first}, only here {counts.only_second}; McNemar p = {counts.p_value:.3g})\n"
            + _first(discordant),
            case=case,
            expected=expected.rate,
            actual=actual.rate,
            discordant=discordant,
            p_value=counts.p_value,
        )
    return counts


def _shown(index: int, answer: Answer) -> dict[str, Any]:
    problem = answer.problem
    return {
        "index": index,
        "question": problem.question,
        "right": problem.value,
        "answered": answer.value,
        "text": answer.text,
    }


def _first(items: list[dict[str, Any]]) -> str:
    lines = [
        f"  {i['index']}: right {i['right']}, answered {i['answered']}"
        + (f", then {i['actual']}" if "actual" in i else "")
        + f": {i['question']}"
        for i in items[:NUM_SHOWN]
    ]
    more = len(items) - NUM_SHOWN
    return "\n".join(lines + ([f"  and {more} more, all in the record"] if more > 0 else []))
