"""What a model of the zoo can do: accuracy of a target (by the engine), acceptance of a drafter (by the offline simulation)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import SamplingParams
from harness.accuracy import Accuracy, answer_problems
from harness.datasets.example import Example
from harness.datasets.gsm8k import load_questions
from harness.datasets.text_tasks import TEXT_TASKS
from harness.datasets.word_problems import WordProblem, fixed_split, fresh_problems
from harness.engines import open_engine
from harness.prompts import prompt_text, question_prompts
from harness.stats import acceptance_length_interval
from harness.workload import WorkItem, run_workload

__all__ = ["NUM_DRAFTS", "NUM_MATH", "acceptance_figures", "accuracy_figures", "chosen_problems", "text_task_figures"]

NUM_DRAFTS = 3
NUM_MATH, NUM_OF_TASK, NUM_REAL = 100, 30, 40
MAX_NEW_TOKENS, MAX_NEW_REAL = 320, 128


def chosen_problems(seed: int | None, n: int) -> Sequence[WordProblem]:
    """The first `n` of the fixed test split, or `n` fresh ones of a seed. `ValueError` if the split has fewer."""
    if seed is not None:
        return fresh_problems(seed, n)
    if not 1 <= n <= len(fixed_split()):
        raise ValueError(f"the fixed test split has {len(fixed_split())} problems, not {n}; a seed makes any number")
    return fixed_split()[:n]


def accuracy_figures(
    model: str, problems: Sequence[WordProblem], *, num_shots: int = 0, num_threads: int | None = None
) -> dict[str, Any]:
    """Greedy accuracy with Wilson intervals: of all, by number of steps, and for seen and held-out combinations."""
    options = {"max_model_len": 1024} | ({} if num_threads is None else {"num_threads": num_threads})
    with open_engine(model, options) as llm:
        accuracy, _ = answer_problems(llm, problems, label=model, num_shots=num_shots)
    parts = {
        "all": accuracy,
        "seen": accuracy.where("seen", held_out=False),
        "held_out": accuracy.where("held out", held_out=True),
    }
    parts |= {f"{steps}_steps": part for steps, part in accuracy.by_steps().items()}
    return {name: _figure(part) for name, part in parts.items() if part.n}


def _figure(accuracy: Accuracy) -> dict[str, Any]:
    interval = accuracy.interval
    return {"value": accuracy.rate, "n": accuracy.n, "right": accuracy.num_right, "interval": [interval.low, interval.high]}


def text_task_figures(model: str, n: int = NUM_OF_TASK) -> dict[str, Any]:
    """Exact matches of greedy answers to `n` test examples of each text task."""
    asked = text_examples(n)
    with open_engine(model, {"max_model_len": 1024}) as llm:
        tokenizer, params = llm.get_tokenizer(), SamplingParams(temperature=0, max_tokens=MAX_NEW_TOKENS)
        items = [WorkItem(str(i), tuple(tokenizer.encode(prompt_text(e.prompt))), params) for i, e in enumerate(asked)]
        outputs = run_workload(llm, items, label="text tasks", audit=False).outputs
    right: dict[str, int] = dict.fromkeys(TEXT_TASKS, 0)
    for i, example in enumerate(asked):
        right[example.category] += outputs[str(i)].outputs[0].text.strip() == example.answer
    return {category: {"value": count / n, "n": n} for category, count in right.items()}


def text_examples(n: int) -> list[Example]:
    """`n` test examples of each text task, the same on every machine."""
    return [make(random.Random(f"text tasks/{name}/{i}"), "test") for name, make in TEXT_TASKS.items() for i in range(n)]


def acceptance_figures(
    recipe: Any, directory: Path, target: Any, *, num_drafts: int = NUM_DRAFTS, share: float = 1.0
) -> dict[str, Any]:
    """Acceptance of the drafter in `directory` by category: length with its interval, rate by position.

    recipe: its `DrafterRecipe`; target: a `FrozenTarget`; `share` of the questions is asked.
    """
    from harness.zoo.training.drafting import simulate
    from harness.zoo.training.registry import load_drafter

    questions, max_new_tokens = _questions(target, share)
    drafter = load_drafter(recipe, directory, target)
    requests = simulate(drafter, target, questions, num_drafts=num_drafts, max_new_tokens=max_new_tokens)
    by_category: dict[str, list[Sequence[int]]] = {}
    for request in requests:
        by_category.setdefault(request.category, []).append(request.accepted)
    return {category: _acceptance(accepted, num_drafts) for category, accepted in by_category.items()}


def _questions(target: Any, share: float) -> tuple[list[Any], int]:
    from harness.zoo.training.drafting import Question

    if target.config.vocab_size > 1024:  # a real checkpoint: real questions
        questions = load_questions()
        category = "gsm8k" if questions.source.startswith("gsm8k") else "own questions"
        texts = questions.texts[: max(2, round(NUM_REAL * share))]
        return [Question(tuple(ids), category) for ids in question_prompts(str(target.directory), texts)], MAX_NEW_REAL
    n_math, n_task = (max(2, round(n * share)) for n in (NUM_MATH, NUM_OF_TASK))
    examples = [problem.example for problem in fixed_split()[:n_math]] + text_examples(n_task)
    encode = target.tokenizer.encode
    return [Question(tuple(encode(prompt_text(e.prompt))), e.category) for e in examples], MAX_NEW_TOKENS


def _acceptance(accepted: Sequence[Sequence[int]], num_drafts: int) -> dict[str, Any]:
    rounds = [count for request in accepted for count in request]
    length = acceptance_length_interval(accepted)
    return {
        "length": length.length,
        "interval": [length.interval.low, length.interval.high],
        "n": len(accepted),
        "drafts": len(rounds),
        "rate": sum(rounds) / (num_drafts * len(rounds)) if rounds else None,
        "per_position": [sum(r > i for r in rounds) / len(rounds) for i in range(num_drafts)] if rounds else [],
    }


def summary(figures: Mapping[str, Any]) -> str:
    """One line for each figure, for people."""
    lines = []
    for name, f in figures.items():
        if "length" in f:
            positions = " / ".join(f"{p:.2f}" for p in f["per_position"])
            lines.append(
                f"{name:12}  length {f['length']:.2f} ({f['interval'][0]:.2f} to {f['interval'][1]:.2f})  "
                f"by position {positions}  {f['drafts']} drafts, {f['n']} requests"
            )
        else:
            interval = f" ({f['interval'][0]:.1%} to {f['interval'][1]:.1%})" if "interval" in f else ""
            lines.append(f"{name:12}  {f['value']:.1%}{interval}  n = {f['n']}")
    return "\n".join(lines)
