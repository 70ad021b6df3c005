"""Whatever a test puts into its record becomes plain JSON, the same in every process."""

from __future__ import annotations

import enum
import json
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from reports import coerce, coerce_mapping
from reports.coerce import MAX_ITEMS, MAX_STRING


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Pair:
    left: object
    right: object


class Opaque:
    pass


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


Point = namedtuple("Point", "x y")


CASES: dict[str, tuple[object, object]] = {
    "none": (None, None),
    "bool": (True, True),
    "numpy-bool": (np.bool_(True), True),
    "numpy-int": (np.int64(7), 7),
    "numpy-float": (np.float32(0.5), 0.5),
    "nan": (np.float64("nan"), "NaN"),
    "infinity": (float("inf"), "Infinity"),
    "minus-infinity": (-np.inf, "-Infinity"),
    "array": (np.arange(3), [0, 1, 2]),
    "scalar-tensor": (torch.tensor(2.5), 2.5),
    "int8-tensor": (torch.tensor([[1, 2]], dtype=torch.int8), [[1, 2]]),
    "tensor-with-gradient": (torch.ones(2, requires_grad=True), [1.0, 1.0]),
    "bf16-tensor": (torch.ones(1, dtype=torch.bfloat16), [1.0]),
    "dtype": (torch.float32, "torch.float32"),
    "path": (Path("a/b"), "a/b"),
    "tuple": ((1, (2, "x")), [1, [2, "x"]]),
    "set": ({3, 20, 1}, [1, 3, 20]),
    "mixed-set": (frozenset({"b", 1}), [1, "b"]),
    "bytes": (b"\x00\xff", "00ff"),
    "dataclass": (Pair(Path("p"), {1: np.int8(2)}), {"left": "p", "right": {"1": 2}}),
    "namedtuple": (Point(1, 2), {"x": 1, "y": 2}),
    "enum": (Colour.RED, "red"),
    "int-enum": (Level.HIGH, 3),
    "class": (int, "int"),
    "function": (len, "len"),
    "range": (range(3), [0, 1, 2]),
    "surrogate": ("\ud800", "\\ud800"),
    "broken-repr": (Broken(), "<Broken, whose repr raises RuntimeError>"),
}


@pytest.mark.parametrize("name", CASES)
def test_values_become_plain_json(name: str) -> None:
    value, expected = CASES[name]
    result = coerce(value)
    assert result == expected
    assert type(result) is type(expected)
    json.dumps(result, allow_nan=False)


def test_no_address_of_an_object_reaches_a_record() -> None:
    assert "0x" not in coerce(Opaque())
    assert coerce(Opaque()) == coerce(Opaque())


def test_keys_become_text() -> None:
    assert coerce_mapping({1: 2, (1, 2): 3, None: 4}) == {"1": 2, "[1, 2]": 3, "None": 4}


def test_huge_and_endless_values_are_cut() -> None:
    text = coerce("x" * (MAX_STRING + 5))
    assert text.endswith("(5 more characters)")
    assert coerce(range(MAX_ITEMS + 3))[-1] == "... (3 more)"
    endless: list[object] = []
    endless.append(endless)
    assert "nested too deeply" in json.dumps(coerce(endless))
