"""What a model is trained on and tested with: a question, its answer and the kind of task."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Example"]


@dataclass(frozen=True)
class Example:
    """`category` names the kind of task; acceptance is reported by it."""

    prompt: str
    answer: str
    category: str
