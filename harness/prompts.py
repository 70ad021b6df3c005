"""Questions as token ids for a model: through its chat template where it has one."""

from __future__ import annotations

from collections.abc import Sequence

from engine.checkpoint import resolve_model
from engine.tokenizer import load_tokenizer
from harness.datasets.example import Example

__all__ = ["prompt_text", "question_prompts"]


def prompt_text(question: str, shots: Sequence[Example] = ()) -> str:
    """What a model without a chat template is asked with: worked examples, then the question, up to and including `Answer:`.

    The answer begins with a space; no token of the zoo's tokenizer reaches across that place.
    """
    return "".join(f"Question: {s.prompt}\nAnswer: {s.answer}\n\n" for s in shots) + f"Question: {question}\nAnswer:"


def question_prompts(model: str, questions: Sequence[str]) -> list[list[int]]:
    """One prompt for each question, in the form that the model was tuned on."""
    tokenizer = load_tokenizer(resolve_model(model))
    if not tokenizer.hf.chat_template:
        return [tokenizer.encode(prompt_text(question)) for question in questions]
    return [tokenizer.apply_chat_template([{"role": "user", "content": question}]) for question in questions]
