"""Records that no test run has made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reports import Durations, Figure, RecordWriter, RunHeader, RunTrailer, TestRecord

HOSTILE = (
    "<script>alert(1)</script> \u202eright to left\u202c \x1b[31m a"
    + "\u0301" * 40
    + " `|*_[x](http://e)` @all \u200b"
    + "x" * 5_000
)
SAMPLING = ("greedy", "temperature", "top-k", "top-p", "min-p", "stop-strings", "n=2", "all-filters")


def header(run_id: str = "run-1", **fields: Any) -> RunHeader:
    provenance = {
        "commit": "0123abcd",
        "dirty": True,
        "versions": {"python": "3.11.7", "lockstep": "0.1.0", "torch": "2.13.0", "transformers": None},
        "cpu": {"model": "A processor", "flags": ["avx2", "fma"]},
        "cores": 2,
        "platform": "Linux",
        "environment": {"OMP_NUM_THREADS": "1"},
    }
    defaults: dict[str, Any] = {"started": "2026-01-02T03:04:05+00:00", "argv": ["suites", "-n", "2"], "provenance": provenance}
    return RunHeader(run_id=run_id, **(defaults | fields))


def record(
    case: str = "a", outcome: str = "passed", *, suite: str = "test_work", run_id: str = "run-1", **fields: Any
) -> TestRecord:
    test = fields.pop("test", "test_it")
    defaults: dict[str, Any] = {"durations": Durations(0.01, 0.2, 0.0), "counts": {"requests_compared": 4}}
    return TestRecord(
        run_id=run_id,
        nodeid=f"suites/{suite}.py::{test}[{case}]",
        suite=suite,
        test=test,
        case_id=case,
        outcome=outcome,
        **(defaults | fields),
    )


def write(
    directory: Path, records: Iterable[TestRecord], head: RunHeader | None = None, *, end: bool = True, **trailer: Any
) -> Path:
    head = head or header()
    writer = RecordWriter(directory, head)
    totals: dict[str, int] = {}
    for item in records:
        writer.write(item)
        totals[item.outcome] = totals.get(item.outcome, 0) + 1
    if end:
        fields = {"finished": "2026-01-02T03:07:05.5+00:00", "totals": totals} | trailer
        writer.write(RunTrailer(run_id=head.run_id, **fields))
    writer.close()
    return directory


def equivalence_records() -> list[TestRecord]:
    """A whole matrix, all of it passed."""
    axes = {
        "executor": ("uni", "mp"),
        "pool": ("roomy", "tight"),
        "prefill": ("whole", "chunked"),
        "drafts": ("plain", "ngram", "mixed"),
        "sampling": SAMPLING,
    }
    activity = {
        "num_speculative_tokens": 3,
        "num_steps": 90,
        "num_overlapped_steps": 80,
        "num_preemptions": 2,
        "num_prefix_hits": 0,
        "num_drafts": 10,
        "num_drafted_tokens": 30,
        "num_accepted_tokens": 15,
        "num_accepted_tokens_per_pos": [8, 5, 2],
    }
    return [
        record(
            "-".join(values),
            suite="test_async_equivalence",
            test="test_async_equals_sync",
            parameters=dict(zip(axes, values, strict=True)),
            parameter_ids=dict(zip(axes, values, strict=True)),
            activity=activity,
            counts={"requests_compared": 30},
            durations=Durations(0.01, 0.2 + 0.01 * i % 0.7, 0.0),
        )
        for i, values in enumerate(itertools.product(*axes.values()))
    ]


def figures() -> list[Figure]:
    return [
        Figure("acceptance rate", 0.512345, n=1200, interval=[0.48, 0.54], threshold=0.4),
        Figure("largest error of the logits", "NaN", unit="nats"),
    ]


def mismatch_evidence() -> dict[str, Any]:
    def candidate(token_id: int, logprob: float, text: str) -> dict[str, Any]:
        return {"token_id": token_id, "logprob": logprob, "text": text}

    return {
        "case": "uni-tight-chunked-ngram-greedy",
        "request": "r3",
        "position": 17,
        "expected": 318,
        "actual": 257,
        "prompt_token_ids": list(range(100, 180)),
        "context": " eggs per day.\nShe eats three for breakfast, so the number of eggs left <script>alert(2)</script>",
        "candidates": {
            "sync": [candidate(318, -0.1031, " is"), candidate(257, -2.45, " a"), candidate(198, -4.0, "\n")],
            "async": [candidate(257, -0.2031, " a"), candidate(318, -1.95, " is"), candidate(13, -5.0, "\u202e.")],
        },
    }


@pytest.fixture(scope="session")
def made_up() -> SimpleNamespace:
    """The functions of this file, and the hostile text."""
    return SimpleNamespace(
        HOSTILE=HOSTILE,
        header=header,
        record=record,
        write=write,
        equivalence_records=equivalence_records,
        figures=figures,
        mismatch_evidence=mismatch_evidence,
    )
