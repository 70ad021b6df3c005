"""The comparison with the golden file can fail, in tokens and in bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from harness.errors import LogprobMismatchError, TokenMismatchError
from harness.golden import assert_golden, compute_golden


@pytest.fixture(scope="module")
def golden(toy_model: str) -> dict[str, Any]:
    return compute_golden(toy_model, {"num_threads": 1})


def test_the_same_again(golden: dict[str, Any], toy_model: str) -> None:
    assert assert_golden(golden, compute_golden(toy_model, {"num_threads": 1, "max_num_seqs": 1}), case="c") == 12
    assert len(golden["greedy"]["token_ids"]) == 4
    assert golden["greedy"]["logprobs_sha256"] != golden["sampled"]["logprobs_sha256"]


def test_a_token_that_differs(golden: dict[str, Any]) -> None:
    other = copy.deepcopy(golden)
    other["sampled"]["token_ids"][2][5] += 1
    with pytest.raises(TokenMismatchError, match="c, sampled"):
        assert_golden(golden, other, case="c")


def test_a_bit_that_differs(golden: dict[str, Any]) -> None:
    other = copy.deepcopy(golden)
    other["filtered"]["logprobs_sha256"] = "0" * 64
    with pytest.raises(LogprobMismatchError, match="c, filtered"):
        assert_golden(golden, other, case="c")


def test_a_set_that_is_missing(golden: dict[str, Any]) -> None:
    other = {name: value for name, value in golden.items() if name != "greedy"}
    with pytest.raises(KeyError):
        assert_golden(golden, other, case="c")


def test_other_weights_give_other_hashes(golden: dict[str, Any]) -> None:
    from harness.toy_model import toy_model_path

    with pytest.raises(TokenMismatchError):
        assert_golden(golden, compute_golden(str(toy_model_path(seed=1)), {"num_threads": 1}), case="c")
