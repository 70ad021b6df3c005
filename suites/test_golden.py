"""The same bits on every path: tokens and log-probabilities equal a file in this repository, whatever computes them.

The file was written once, on the AVX2 path (`python -m harness.golden suites/golden.json`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.engines import kernel_backends, missing_from_cache
from harness.golden import GOLDEN_MODELS, assert_golden, compute_golden
from harness.recording import Notes

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))
PATHS = [
    ("native-avx2", 1, "uni"),
    ("native-avx2", 2, "uni"),
    ("native-avx2", 2, "mp"),
    ("native-portable", 1, "uni"),
    ("native-portable", 2, "uni"),
    ("native-portable", 1, "mp"),
    ("reference", 1, "uni"),
]
TOYS = [name for name in GOLDEN_MODELS if name != "smollm2-135m"]


@pytest.fixture
def golden_case(record: Notes) -> Callable[..., None]:
    def check(model: str, backend: str, num_threads: int, executor: str) -> None:
        if backend not in kernel_backends():
            pytest.skip(f"kernel backend {backend} is not available on this machine")
        options = {"kernel_backend": backend, "num_threads": num_threads, "distributed_executor_backend": executor}
        actual = compute_golden(GOLDEN_MODELS[model](), options)
        record.count(
            "requests_compared", assert_golden(GOLDEN[model], actual, case=f"{model}-{backend}-{num_threads}-{executor}")
        )

    return check


@pytest.mark.parametrize(("backend", "num_threads", "executor"), PATHS)
@pytest.mark.parametrize("model", TOYS)
def test_golden(model: str, backend: str, num_threads: int, executor: str, golden_case: Callable[..., None]) -> None:
    golden_case(model, backend, num_threads, executor)


@pytest.mark.real
@pytest.mark.parametrize(
    ("backend", "num_threads", "executor"),
    # The reference takes an hour on this model; the toy models hold it to the same bits.
    [
        path if path[0] == "native-avx2" else pytest.param(*path, marks=pytest.mark.tier("real"))
        for path in PATHS
        if path[0] != "reference"
    ],
)
def test_golden_on_the_real_checkpoint(backend: str, num_threads: int, executor: str, golden_case: Callable[..., None]) -> None:
    if reason := missing_from_cache("zoo:smollm2-135m"):
        pytest.skip(reason)
    golden_case("smollm2-135m", backend, num_threads, executor)
