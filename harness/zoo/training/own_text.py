"""Text that a model writes itself, for drafters of a checkpoint whose training data nobody has."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from engine import LLM, SamplingParams
from harness.datasets.word_problems import make_problem
from harness.prompts import question_prompts

__all__ = ["own_questions", "write_own_text"]

BATCH = 64  # requests in the engine at once; also what an interruption can lose
MAX_TOKENS = 160
TEMPERATURES = (0.0, 0.7)  # alternating: what is drafted for is greedy, but more of the language should be seen
PROBLEM_SHARE = 0.75
SUBJECTS = (
    "a bicycle", "the sea", "bread", "a library", "winter", "a train", "a garden", "an old house", "the moon", "a market",
    "a river", "the wind", "a school", "a bridge", "honey", "paper", "a clock", "salt", "a farm", "a city park", "music",
    "a dog", "rice", "a football team", "a good friend", "sleep", "the rain forest", "a restaurant", "a computer",
)  # fmt: skip
REQUESTS = (
    "Explain to a child how {} works.",
    "Write a short story about {}.",
    "Give me three facts about {}.",
    "What should I know before I spend money on {}?",
    "Describe {} in four sentences.",
    "Compare {} with {}.",
    "Make a plan for a day about {}, step by step, with times.",
    "Write a polite letter that asks for {}.",
)


def own_questions(seed: int, count: int) -> list[str]:
    """Word problems of the split `train` for the greater part, then everyday requests."""
    rng = random.Random(f"own text/{seed}")
    return [
        make_problem(rng, "train").question
        if rng.random() < PROBLEM_SHARE
        else rng.choice(REQUESTS).format(*rng.sample(SUBJECTS, 2))
        for _ in range(count)
    ]


def write_own_text(
    model: str, path: Path, *, count: int, seed: int, num_threads: int | None, say: Callable[[str], None]
) -> None:
    """Append to the JSON lines of `path` until it has `count` replies, each `{"prompt": ids, "reply": ids}`.

    What an interrupted run wrote is kept; a line that it cut off is made anew.
    """
    done = sum(1 for _ in read_own_text(path)) if path.exists() else 0
    _drop_cut_line(path)
    questions = own_questions(seed, count)
    if done >= count:
        return
    prompts = question_prompts(model, questions)
    path.parent.mkdir(parents=True, exist_ok=True)
    with LLM(model, num_threads=num_threads, max_num_seqs=BATCH, max_model_len=768, enable_prefix_caching=False) as llm:
        for start in range(done, count, BATCH):
            batch = range(start, min(start + BATCH, count))
            params = [SamplingParams(temperature=TEMPERATURES[i % 2], seed=i, max_tokens=MAX_TOKENS) for i in batch]
            outputs = llm.generate([prompts[i] for i in batch], params, use_tqdm=False)
            with path.open("a", encoding="utf-8") as sink:
                for i, output in zip(batch, outputs, strict=True):
                    sink.write(json.dumps({"prompt": prompts[i], "reply": list(output.outputs[0].token_ids)}) + "\n")
            say(f"{batch.stop} of {count} replies")


def read_own_text(path: Path) -> Iterator[tuple[list[int], list[int]]]:
    """(prompt ids, reply ids) of every whole line."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                item = json.loads(line)
                yield item["prompt"], item["reply"]


def _drop_cut_line(path: Path) -> None:
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            path.write_bytes(whole)
