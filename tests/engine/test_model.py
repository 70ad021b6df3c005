"""The decoder against Transformers' own models, for every family, with tied and untied embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams
from engine.checkpoint import SUPPORTED_ARCHITECTURES
from harness.toy_model import EOS_ID, toy_model_path

PROMPTS = [list(b"Hello, how are you?"), [7], list(range(40, 90)), [256, *b"{'a': 1}"], [258, 257, 0, 255]]
NUM_TOKENS = 16
TOLERANCE = 1e-4  # of a log-probability, against float64

families = [
    pytest.param(architecture, tied, dtype, id=f"{architecture.removesuffix('ForCausalLM').lower()}-{name}-{dtype}")
    for architecture in SUPPORTED_ARCHITECTURES
    for tied, name, dtype in ((False, "untied", "float32"), (True, "tied", "float32"), (False, "untied", "bfloat16"))
]


def assert_equals_transformers(path: str, reference: Any, **options: Any) -> None:
    """Greedy ids are those of `generate`; every log-probability is within TOLERANCE of a float64 forward."""
    with LLM(path, max_model_len=96, max_num_batched_tokens=23, num_kv_blocks=64, num_threads=1, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logprobs=259)
        outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params, use_tqdm=False)]
    worst = 0.0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            expected = reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=EOS_ID
            )[0, len(prompt) :].tolist()
            logits = reference(torch.tensor([[*prompt, *expected]])).logits[0, len(prompt) - 1 : -1]
        assert output.token_ids == expected
        ours = torch.tensor(
            [[entries[i].logprob for i in range(259)] for entries in output.logprobs or []], dtype=torch.float64
        )
        worst = max(worst, float((ours - torch.log_softmax(logits, dim=-1)).abs().max()))
    assert worst < TOLERANCE
    assert worst > 0, "the same numbers to the last bit: float32 was not compared with float64"


def load_float64(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval()


@pytest.mark.parametrize(("architecture", "tied", "dtype"), families)
def test_the_family_equals_transformers(architecture: str, tied: bool, dtype: str) -> None:
    path = str(toy_model_path(architecture, dtype=dtype, tie_word_embeddings=tied))
    reference = load_float64(path)
    assert reference.config.tie_word_embeddings == tied
    assert_equals_transformers(path, reference)


def test_storing_float32_weights_as_bfloat16_rounds_the_matrices_and_nothing_else() -> None:
    path = str(toy_model_path("Qwen2ForCausalLM"))
    reference = load_float64(path)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() == 2:
                parameter.copy_(parameter.bfloat16().double())
    assert_equals_transformers(path, reference, dtype="bfloat16")
