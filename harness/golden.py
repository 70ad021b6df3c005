"""Hashes of tokens and log-probabilities that hold on every machine, backend, thread count and executor.

`python -m harness.golden FILE` writes the file anew; do that only when the numerics change on purpose.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import RequestOutput, SamplingParams
from harness.engines import open_engine
from harness.errors import LogprobMismatchError, TokenMismatchError
from harness.toy_model import toy_model_path

__all__ = ["GOLDEN_MODELS", "assert_golden", "compute_golden"]

GOLDEN_MODELS: dict[str, Callable[[], str]] = {
    "llama": lambda: str(toy_model_path("LlamaForCausalLM")),
    "llama-bf16": lambda: str(toy_model_path("LlamaForCausalLM", dtype="bfloat16")),
    "qwen2": lambda: str(toy_model_path("Qwen2ForCausalLM")),
    "qwen3": lambda: str(toy_model_path("Qwen3ForCausalLM")),
    "smollm2-135m": lambda: "zoo:smollm2-135m",
}
_PROMPTS = ([72, 101, 108, 108, 111], list(range(40, 77)), [7] * 16, [33, 44, 55, 66, 77, 88, 99, 110, 121])
_PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=20),
    "sampled": SamplingParams(temperature=0.9, seed=11, max_tokens=12, ignore_eos=True, logprobs=20),
    "filtered": SamplingParams(
        temperature=1.2, top_k=40, top_p=0.9, min_p=0.01, seed=12, max_tokens=12, ignore_eos=True, logprobs=20
    ),
}


def compute_golden(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """For each set of sampling parameters: the ids, and a hash over the exact bits of all log-probabilities."""
    golden: dict[str, Any] = {}
    with open_engine(model, {"max_model_len": 128, "skip_tokenizer_init": True} | dict(options)) as llm:
        for name, params in _PARAMS.items():
            outputs = llm.generate(_PROMPTS, params, use_tqdm=False)
            golden[name] = {
                "token_ids": [output.outputs[0].token_ids for output in outputs],
                "logprobs_sha256": _logprobs_hash(outputs),
            }
    return golden


def _logprobs_hash(outputs: Sequence[RequestOutput]) -> str:
    digest = hashlib.sha256()
    for output in outputs:
        for position in output.outputs[0].logprobs or []:
            for token_id, entry in sorted(position.items()):
                digest.update(struct.pack("<qqd", token_id, entry.rank, entry.logprob))
    return digest.hexdigest()


def assert_golden(expected: Mapping[str, Any], actual: Mapping[str, Any], *, case: str) -> int:
    """Returns the number of compared requests."""
    for name, hashes in expected.items():
        if hashes["token_ids"] != actual[name]["token_ids"]:
            raise TokenMismatchError(
                f"{case}, {name}: the ids are not those of the golden file",
                case=case,
                expected=hashes["token_ids"],
                actual=actual[name]["token_ids"],
            )
        if hashes["logprobs_sha256"] != actual[name]["logprobs_sha256"]:
            raise LogprobMismatchError(
                f"{case}, {name}: the ids are those of the golden file, the bits of the log-probabilities are not",
                case=case,
                expected=hashes["logprobs_sha256"],
                actual=actual[name]["logprobs_sha256"],
            )
    return len(expected) * len(_PROMPTS)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m harness.golden FILE")
    golden = {name: compute_golden(path(), {}) for name, path in GOLDEN_MODELS.items()}
    Path(sys.argv[1]).write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
