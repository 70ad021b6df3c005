"""What an engine costs: its peak memory against the weights and the KV pool."""

from __future__ import annotations

import pytest

from harness.errors import WorkBoundError
from harness.memory import measure_peak_memory
from harness.recording import Notes

SMALLEST_WEIGHTS = 100_000_000
MAX_RATIO = 1.3  # peak above the KV pool, as a multiple of the weights


@pytest.mark.real
def test_peak_memory(real_model: str, record: Notes) -> None:
    peak = measure_peak_memory(real_model, {"max_model_len": 512, "num_kv_blocks": 64})
    record.figure("peak memory above the KV pool / weights", peak.ratio, threshold=MAX_RATIO)
    if peak.weights < SMALLEST_WEIGHTS:
        pytest.skip(f"the weights are {peak.weights} bytes, too few beside the fixed cost of any engine")
    if peak.ratio >= MAX_RATIO:
        raise WorkBoundError(
            f"peak memory is {peak.ratio:.2f} times the weights: {peak}", expected=MAX_RATIO, actual=peak.ratio
        )
