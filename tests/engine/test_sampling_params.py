"""Every value that a request cannot have is refused, with what to write instead."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from engine import SamplingParams, UnknownOptionError

NAN, INF = math.nan, math.inf
BAD = [
    *[("temperature", value, "0 .greedy. or positive|finite number") for value in (-0.1, NAN, INF, -INF, "hot", None, True)],
    *[("top_p", value, r"\(0, 1\]|finite number") for value in (0, -0.5, 1.0001, NAN, INF, "a", None)],
    *[("min_p", value, r"\[0, 1\]|finite number") for value in (-0.01, 1.5, NAN, None)],
    *[("top_k", value, "0 or -1 for all") for value in (-2, 1.0, "5", None, True)],
    *[("n", value, "from 1 to") for value in (0, -1, 1.5, 2000, None, True, "2")],
    *[("seed", value, "64-bit integer or None") for value in (2**63, -(2**63) - 1, 1.0, "7", True)],
    *[("max_tokens", value, "at least 1, or None") for value in (0, -3, 2.0, "8", True)],
    *[("min_tokens", value, "at least 0") for value in (-1, 1.0, None, True)],
    *[("logprobs", value, "None or an integer of at least 0") for value in (-1, 1.0, "1", True)],
    *[("stop", value, "non-empty string") for value in ("", ["a", ""], [5], [None], [b"a"])],
    *[("stop_token_ids", value, "integers of at least 0") for value in ([-1], [1.0], ["1"], [True], [None])],
]


@pytest.mark.parametrize(("name", "value", "remedy"), BAD, ids=[f"{name}={value!r}" for name, value, _ in BAD])
def test_a_bad_value_is_refused(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value)


def test_every_checked_field_is_in_the_table() -> None:
    """A new field must say which values it cannot have, or that it takes any."""
    takes_any = {"ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize", "extra_args"}
    assert {name for name, *_ in BAD} | takes_any == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("temprature", "temperature"), ("max_token", "max_tokens"), ("topp", "top_p"), ("stop_ids", "stop_token_ids")],
)
def test_an_unknown_field_names_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(UnknownOptionError, match=rf"no option '{given}'\. Did you mean '{nearest}'\?"):
        SamplingParams(**{given: 1})


def test_an_unknown_field_without_a_neighbour_lists_all() -> None:
    with pytest.raises(TypeError, match=r"Known: .*max_tokens.*temperature"):
        SamplingParams(zzzzzz=1)


def test_values_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"min_tokens \(5\) is above max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(ValueError, match="use stop_token_ids"):
        SamplingParams(stop="a", detokenize=False)
    SamplingParams(min_tokens=5, max_tokens=5)
    SamplingParams(min_tokens=5, max_tokens=None)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"temperature": 5},
        {"top_p": 1},
        {"top_k": -1},
        {"top_k": 0},
        {"min_p": 1},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"max_tokens": None},
        {"logprobs": 0},
        {"stop": []},
        {"stop_token_ids": range(3)},
    ],
    ids=str,
)
def test_the_edges_are_allowed(values: dict[str, Any]) -> None:
    SamplingParams(**values)


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (1, 1.0, 1.0, 0, 16)
    assert (params.stop, params.stop_token_ids, params.min_tokens, params.logprobs, params.seed) == ((), (), 0, None, None)


def test_frozen_and_hashable() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1], extra_args={"x": [1]})
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2
    assert (params.stop, params.stop_token_ids) == (("a",), (1,))
    assert hash(params) == hash(SamplingParams(stop="a", stop_token_ids=(1,), extra_args={"x": [1]}))


def test_greedy_is_a_temperature_below_the_smallest_that_vllm_samples_with() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=9e-6).is_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy
