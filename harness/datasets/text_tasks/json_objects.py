"""Small JSON objects, described field by field."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from harness.datasets.names import Name
from harness.datasets.text_tasks.splits import Draft
from harness.datasets.text_tasks.vocabulary import COLORS, NOUNS, PLACES

__all__ = ["json_object"]

PROMPTS = (
    "Give a JSON object with {fields}.",
    "Write a JSON object with these fields: {fields}.",
    "Make JSON of this: {fields}.",
)
ITEMS = NOUNS[::4]
TAGS = ("big", "small", "new", "clean", "cheap", *COLORS)

Field = tuple[str, object]  # the value in words (with its type), the value


def _string(choices: tuple[str, ...], rng: random.Random) -> Field:
    value = rng.choice(choices)
    return f"(string) {value}", value


def _integer(low: int, high: int, rng: random.Random) -> Field:
    value = rng.randint(low, high)
    return f"(integer) {value}", value


def _boolean(rng: random.Random) -> Field:
    value = rng.random() < 0.5
    return f"(boolean) {'true' if value else 'false'}", value


def _strings(choices: tuple[str, ...], rng: random.Random) -> Field:
    values = rng.sample(choices, rng.randint(1, 4))
    return f"(list of strings) {', '.join(values)}", values


def _integers(rng: random.Random) -> Field:
    values = [rng.randint(1, 99) for _ in range(rng.randint(1, 4))]
    return f"(list of integers) {', '.join(map(str, values))}", values


def _person(rng: random.Random, names: tuple[Name, ...]) -> Field:
    name = rng.choice(names).text
    age = rng.randint(3, 99)
    return f"(object) with name (string) {name} and age (integer) {age}", {"name": name, "age": age}


FIELDS: dict[str, Callable[[random.Random, tuple[Name, ...]], Field]] = {
    "name": lambda rng, names: _string((rng.choice(names).text,), rng),
    "city": lambda rng, names: _string(PLACES, rng),
    "color": lambda rng, names: _string(COLORS, rng),
    "item": lambda rng, names: _string(ITEMS, rng),
    "age": lambda rng, names: _integer(3, 99, rng),
    "count": lambda rng, names: _integer(0, 20, rng),
    "price": lambda rng, names: _integer(1, 500, rng),
    "open": lambda rng, names: _boolean(rng),
    "ready": lambda rng, names: _boolean(rng),
    "tags": lambda rng, names: _strings(TAGS, rng),
    "items": lambda rng, names: _strings(ITEMS, rng),
    "scores": lambda rng, names: _integers(rng),
    "owner": _person,
    "friend": _person,
}
KEYS = tuple(FIELDS)


def json_object(rng: random.Random, names: tuple[Name, ...]) -> Draft:
    """Keys in the order of the description; fields are divided by semicolons, since lists have commas."""
    value: dict[str, object] = {}
    described = []
    for key in rng.sample(KEYS, rng.randint(2, 5)):
        words, value[key] = FIELDS[key](rng, names)
        described.append(f"{key} {words}")
    answer = _dumps(value)
    return Draft(answer, rng.choice(PROMPTS).format(fields="; ".join(described)), answer)


_dumps = json.JSONEncoder(separators=(",", ":")).encode
