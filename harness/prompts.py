"""Questions as token ids for a model: through its chat template where it has one."""

from __future__ import annotations

from collections.abc import Sequence

from engine.checkpoint import resolve_model
from engine.tokenizer import load_tokenizer

__all__ = ["question_prompts"]


def question_prompts(model: str, questions: Sequence[str]) -> list[list[int]]:
    """One prompt for each question, in the form that the model was tuned on."""
    tokenizer = load_tokenizer(resolve_model(model))
    if not tokenizer.hf.chat_template:
        return [tokenizer.encode(f"Question: {question}\nAnswer:") for question in questions]
    return [tokenizer.apply_chat_template([{"role": "user", "content": question}]) for question in questions]
