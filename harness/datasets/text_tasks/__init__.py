"""Tasks without mathematics, generated: what a small model learns beside word problems, and what it is tested on.

Each category stresses something else: runs of equal tokens, text that stands in the prompt, counters, structure, positions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from harness.datasets.example import Example
from harness.datasets.text_tasks.counting import repetition, series
from harness.datasets.text_tasks.json_objects import json_object
from harness.datasets.text_tasks.paragraphs import copy, edit
from harness.datasets.text_tasks.positions import position
from harness.datasets.text_tasks.splits import in_split

__all__ = ["TEXT_TASKS", "WEIGHTS", "text_task"]

TEXT_TASKS: Mapping[str, Callable[[random.Random, str], Example]] = MappingProxyType(
    {
        "repetition": in_split("repetition", repetition),
        "copy": in_split("copy", copy),
        "edit": in_split("edit", edit),
        "series": in_split("series", series),
        "json": in_split("json", json_object),
        "position": in_split("position", position),
    }
)

# Answers about positions are of one or two tokens, so that it takes more of them to learn as much.
WEIGHTS = MappingProxyType({"repetition": 3, "copy": 3, "edit": 4, "series": 4, "json": 4, "position": 6})
_CATEGORIES, _WEIGHTS = tuple(WEIGHTS), tuple(WEIGHTS.values())


def text_task(rng: random.Random, split: str) -> Example:
    """An example of any category. `split` is train, validation or test; anything else raises `ValueError`."""
    return TEXT_TASKS[rng.choices(_CATEGORIES, _WEIGHTS)[0]](rng, split)
