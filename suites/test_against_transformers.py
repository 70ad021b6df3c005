"""The embedded engine against transformers on the real checkpoint: greedy ids, and how far fp32 logits are from float64."""

from __future__ import annotations

import pytest

from harness.datasets.gsm8k import Questions
from harness.prompts import question_prompts
from harness.recording import Notes
from harness.transformers_reference import compare_greedy, compare_logit_error

NUM_QUESTIONS, NUM_TOKENS = 40, 64
TIE = 1e-4  # where greedy ids part, both engines' two best logits must be closer than this


@pytest.mark.real
@pytest.mark.tier("real")
def test_greedy_ids_equal_transformers(real_model: str, questions: Questions, record: Notes) -> None:
    prompts = question_prompts(real_model, questions.texts[:NUM_QUESTIONS])
    result = compare_greedy(real_model, prompts, num_tokens=NUM_TOKENS, tie=TIE)
    record.count("requests_compared", len(prompts))
    record.figure("greedy ids equal to transformers", result.num_equal, n=len(prompts))
    record.figure("greedy ids that part at a near-tie", result.num_ties, n=len(prompts))
    record.provenance({"questions": questions.source})


@pytest.mark.real
@pytest.mark.tier("real")
def test_logits_are_as_exact_as_torch(real_model: str, questions: Questions, record: Notes) -> None:
    """Largest error against a float64 forward: ours at most twice that of torch's own fp32 forward."""
    prompts = question_prompts(real_model, questions.texts[:8])
    errors = compare_logit_error(real_model, prompts, max_ratio=2.0)
    record.figure("largest logit error, engine", errors.engine, n=errors.num_positions)
    record.figure("largest logit error, torch fp32", errors.torch, n=errors.num_positions)
    record.figure("ratio of largest logit errors", errors.engine / errors.torch, n=errors.num_positions, threshold=2.0)
