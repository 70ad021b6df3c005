"""Transformers on the same checkpoint, as an outside reference for the embedded engine's numerics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine import SamplingParams
from engine.checkpoint import open_checkpoint, resolve_model
from engine.model import Batch, Decoder
from engine.tokenizer import load_tokenizer
from harness.accuracy import MAX_TOKENS, Accuracy, judge
from harness.datasets.word_problems import WordProblem
from harness.divergence import find_divergence
from harness.engines import open_engine, worker_threads
from harness.errors import AccuracyError, TokenMismatchError
from harness.prompts import prompt_text
from kernels.backend import create_kernels

__all__ = [
    "GreedyResult",
    "LogitErrors",
    "compare_greedy",
    "compare_logit_error",
    "engine_logits",
    "transformers_answers",
]


@dataclass(frozen=True)
class GreedyResult:
    num_equal: int
    num_ties: int


@dataclass(frozen=True)
class LogitErrors:
    """Largest absolute error of a logit against a float64 forward."""

    engine: float
    torch: float
    num_positions: int


def compare_greedy(model: str, prompts: Sequence[Sequence[int]], *, num_tokens: int, tie: float) -> GreedyResult:
    """Greedy ids against `generate` of transformers in fp32.

    Raises `TokenMismatchError` unless, where the first difference is, the two best logits are closer than `tie` in both.
    """
    params = SamplingParams(temperature=0, max_tokens=num_tokens)
    longest = max(map(len, prompts)) + num_tokens
    with open_engine(model, {"max_model_len": longest}) as llm:
        ours = [output.outputs[0].token_ids for output in llm.generate([list(p) for p in prompts], params, use_tqdm=False)]
    reference = _load_transformers(model, torch.float32)
    num_ties = 0
    for index, (prompt, mine) in enumerate(zip(prompts, ours, strict=True)):
        with torch.inference_mode():
            ids = torch.tensor([list(prompt)])
            theirs = reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
            )[0, len(prompt) :].tolist()
        found = find_divergence(theirs, mine)
        if found is None:
            continue
        prefix = [*prompt, *theirs[: found.position]]
        gaps = [_gap(logits) for logits in (engine_logits(model, [prefix])[0][-1], _transformers_logits(reference, prefix)[-1])]
        if max(gaps) >= tie:
            raise TokenMismatchError(
                f"prompt {index}: transformers says {found.expected}, the engine {found.actual} at new token {found.position}; "
                f"the two best logits are {gaps[1]:.2e} apart in transformers, {gaps[0]:.2e} in the engine",
                request=str(index),
                position=found.position,
                expected=found.expected,
                actual=found.actual,
                gaps=gaps,
            )
        num_ties += 1
    return GreedyResult(len(prompts) - num_ties, num_ties)


def transformers_answers(model: str, asked: Sequence[WordProblem]) -> Accuracy:
    """What `generate` of transformers answers in fp32, greedy, one problem at a time."""
    reference = _load_transformers(model, torch.float32)
    tokenizer = load_tokenizer(resolve_model(model))
    texts = []
    for problem in asked:
        ids = torch.tensor([tokenizer.encode(prompt_text(problem.question))])
        with torch.inference_mode():
            new = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False)
        texts.append(tokenizer.decode(new[0, ids.shape[1] :].tolist()))
    return judge("transformers", asked, texts)


def compare_logit_error(model: str, prompts: Sequence[Sequence[int]], *, max_ratio: float) -> LogitErrors:
    """Raises `AccuracyError` if our largest error is above `max_ratio` times that of torch's fp32 forward."""
    ours = engine_logits(model, prompts)
    narrow = _load_transformers(model, torch.float32)
    single = [_transformers_logits(narrow, prompt) for prompt in prompts]
    wide = narrow.double()
    exact = [_transformers_logits(wide, prompt) for prompt in prompts]
    errors = LogitErrors(
        engine=max(float((a.double() - b).abs().max()) for a, b in zip(ours, exact, strict=True)),
        torch=max(float((a.double() - b).abs().max()) for a, b in zip(single, exact, strict=True)),
        num_positions=sum(map(len, prompts)),
    )
    if errors.engine > max_ratio * errors.torch:
        raise AccuracyError(
            f"the engine's largest logit error is {errors.engine:.3e}, torch's {errors.torch:.3e}; "
            f"at most {max_ratio} times as much is allowed",
            expected=max_ratio * errors.torch,
            actual=errors.engine,
        )
    return errors


def engine_logits(model: str, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits [len(prompt), V] f32 at every position of each prompt, from the engine's own decoder."""
    block_size, longest = 16, max(map(len, prompts))
    num_blocks = -(-longest // block_size)
    decoder = Decoder(
        open_checkpoint(resolve_model(model)),
        create_kernels("auto", worker_threads()),
        dtype="auto",
        max_model_len=longest,
        num_kv_blocks=num_blocks,
        block_size=block_size,
    )
    table = torch.arange(num_blocks, dtype=torch.int32)[None, :]
    logits = []
    for prompt in prompts:
        positions = torch.arange(len(prompt))
        batch = Batch(torch.tensor(list(prompt)), positions, torch.zeros_like(positions), positions, table)
        logits.append(decoder.logits(decoder.forward(batch).normed))
    return logits


def _load_transformers(model: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(resolve_model(model)), dtype=dtype, local_files_only=True).eval()


def _transformers_logits(reference: Any, prompt: Sequence[int]) -> torch.Tensor:
    """[len(prompt), V]"""
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([list(prompt)])).logits[0]
    return logits


def _gap(logits: torch.Tensor) -> float:
    best = logits.double().topk(2).values
    return float(best[0] - best[1])
