"""The parts of a word problem: how it opens, what happens next, and the arithmetic behind each of these.

Placeholders of the texts: {N} the person, {p}/{P} she/he, {q} her/his, {O} another person, {v} the first value, {a} {b} {k} {n}
{m} numbers, {f} a fraction in words, {eq} an equation with its result, and the words that a family chooses from (`words`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["ARITHMETIC", "MAX_VALUE", "OPENINGS", "Family", "Move", "Opening", "Step"]

MAX_VALUE = 500  # no number of a problem is larger
FRACTIONS = {2: ("half", "50%"), 3: ("a third",), 4: ("a quarter", "25%"), 5: ("a fifth", "20%"), 10: ("a tenth", "10%")}


@dataclass(frozen=True)
class Opening:
    """`kind` is a key of `OPENINGS`; `aux` is the answer's line for the kinds that calculate."""

    kind: str
    texts: tuple[str, ...]
    aux: str = ""


@dataclass(frozen=True)
class Move:
    """Something that happens. `name` is the operation in a problem's signature, `kind` a key of `ARITHMETIC`.

    `aux` is the answer's line for the first of two equations. A move with an `ask` ends the problem; its `state` replaces the
    family's.
    """

    name: str
    kind: str
    texts: tuple[str, ...]
    aux: str = ""
    state: str = ""
    ask: str = ""


@dataclass(frozen=True)
class Family:
    """A setting. `state` holds the answer's line after a move in two forms, of which the first is by far the more frequent."""

    name: str
    openings: tuple[Opening, ...]
    state: tuple[str, str]
    ask: str
    moves: tuple[Move, ...]
    endings: tuple[Move, ...]
    asides: tuple[str, ...]  # sentences with a number {k} that does not matter
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """What a move did: the equations in order (the last one gives the new value), its result and the numbers of its text."""

    equations: tuple[str, ...]
    value: int
    numbers: dict[str, str]


Arithmetic = Callable[[random.Random, int], Step | None]
"""(randomness, value so far) -> what happened; None if this value allows nothing of the kind."""


def _add(rng: random.Random, value: int) -> Step | None:
    room = MAX_VALUE - value
    return _plus(value, rng.randint(2, min(room, rng.choice((20, 60, 120))))) if room >= 2 else None


def _plus(value: int, k: int) -> Step:
    return Step((f"{value}+{k}",), value + k, {"k": str(k)})


def _sub(rng: random.Random, value: int) -> Step | None:
    if value < 6:
        return None
    k = rng.randint(2, min(value - 1, rng.choice((20, 60, 120))))
    return Step((f"{value}-{k}",), value - k, {"k": str(k)})


def _mul(rng: random.Random, value: int) -> Step | None:
    most = min(9, MAX_VALUE // value)
    if most < 2 or value < 2:
        return None
    k = rng.randint(2, most)
    return Step((f"{value}*{k}",), value * k, {"k": str(k)})


def _div(rng: random.Random, value: int) -> Step | None:
    divisors = [k for k in range(2, 10) if value % k == 0 and value // k >= 2]
    if not divisors:
        return None
    k = rng.choice(divisors)
    return Step((f"{value}/{k}",), value // k, {"k": str(k)})


def _groups(sign: str) -> Arithmetic:
    def groups(rng: random.Random, value: int) -> Step | None:
        most = min(150, MAX_VALUE - value if sign == "+" else value - 1)
        if most < 4:
            return None
        n = rng.randint(2, min(9, most // 2))
        m = rng.randint(2, min(20, most // n))
        result = value + n * m if sign == "+" else value - n * m
        return Step((f"{n}*{m}", f"{value}{sign}{n * m}"), result, {"n": str(n), "m": str(m)})

    return groups


def _part(sign: str) -> Arithmetic:
    def part(rng: random.Random, value: int) -> Step | None:
        choices = [d for d in FRACTIONS if value % d == 0 and value // d >= 2]
        if not choices:
            return None
        d = rng.choice(choices)
        share = value // d
        result = value + share if sign == "+" else value - share
        if result > MAX_VALUE:
            return None
        return Step((f"{value}/{d}", f"{value}{sign}{share}"), result, {"f": rng.choice(FRACTIONS[d])})

    return part


def _with_other(first: Arithmetic) -> Arithmetic:
    """Somebody else has that much; both together."""

    def together(rng: random.Random, value: int) -> Step | None:
        other = first(rng, value)
        if other is None or value + other.value > MAX_VALUE:
            return None
        return Step((*other.equations, f"{value}+{other.value}"), value + other.value, other.numbers)

    return together


def _goal(rng: random.Random, value: int) -> Step | None:
    most = min(MAX_VALUE, value + 150)
    if most < value + 2:
        return None
    k = rng.randint(value + 2, most)
    return Step((f"{k}-{value}",), k - value, {"k": str(k)})


ARITHMETIC: dict[str, Arithmetic] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "add_groups": _groups("+"),
    "sub_groups": _groups("-"),
    "add_part": _part("+"),
    "sub_part": _part("-"),
    "together_more": _with_other(_add),
    "together_fewer": _with_other(_sub),
    "together_times": _with_other(_mul),
    "goal": _goal,
}


def _given(rng: random.Random) -> Step:
    value = rng.randint(6, rng.choice((40, 120, 300)))
    return Step((), value, {"v": str(value)})


def _product(rng: random.Random) -> Step:
    a = rng.randint(2, 12)
    b = rng.randint(3, min(40, 300 // a))
    return Step((f"{a}*{b}",), a * b, {"a": str(a), "b": str(b)})


def _sum(rng: random.Random) -> Step:
    a, b = rng.randint(3, 120), rng.randint(3, 120)
    return Step((f"{a}+{b}",), a + b, {"a": str(a), "b": str(b)})


OPENINGS: dict[str, Callable[[random.Random], Step]] = {"given": _given, "product": _product, "sum": _sum}
