"""The first place where two completions part, decoded in context, with what each engine thought there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine import LLM, EngineError, SamplingParams

__all__ = ["Candidate", "Divergence", "explain", "find_divergence", "top_candidates"]

CONTEXT_TOKENS = 12


@dataclass(frozen=True)
class Candidate:
    token_id: int
    logprob: float
    text: str


@dataclass(frozen=True)
class Divergence:
    position: int  # index in the new tokens
    expected: int | None  # None: this side had ended
    actual: int | None


def find_divergence(expected: Sequence[int], actual: Sequence[int]) -> Divergence | None:
    """None if both are equal."""
    for position, (a, b) in enumerate(zip(expected, actual, strict=False)):
        if a != b:
            return Divergence(position, a, b)
    if len(expected) == len(actual):
        return None
    position = min(len(expected), len(actual))
    return Divergence(
        position,
        expected[position] if position < len(expected) else None,
        actual[position] if position < len(actual) else None,
    )


def top_candidates(llm: LLM, prefix: Sequence[int], k: int = 5) -> list[Candidate]:
    """What `llm` itself gives behind `prefix`: its k best tokens by raw log-probability. Empty where it cannot say."""
    if not prefix or len(prefix) >= llm.config.max_model_len or llm.has_unfinished_requests():
        return []
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=k, ignore_eos=True)
    try:
        output = llm.generate([list(prefix)], params, use_tqdm=False)[0].outputs[0]
    except EngineError:  # an engine that has just shown a defect may show another one
        return []
    entries = (output.logprobs or [{}])[0].items()
    ranked = sorted(entries, key=lambda entry: entry[1].rank)[:k]
    return [Candidate(token, entry.logprob, entry.decoded_token or "") for token, entry in ranked]


def explain(
    llm: LLM | None, prompt: Sequence[int], tokens: Sequence[int], found: Divergence, sides: dict[str, list[Candidate]]
) -> tuple[str, dict[str, Any]]:
    """(text for people, the same as evidence). `tokens` are the new tokens of either side; `sides` label -> candidates."""
    shared = list(tokens[: found.position])
    decode = _decoder(llm)
    context = decode([*prompt, *shared][-CONTEXT_TOKENS:])
    lines = [
        f"first divergence at new token {found.position}:",
        f"  after    …{context!r}",
        f"  expected {_token(found.expected, decode)}",
        f"  actual   {_token(found.actual, decode)}",
    ]
    for label, candidates in sides.items():
        shown = ", ".join(f"{c.text!r} ({c.token_id}) {c.logprob:.6f}" for c in candidates) or "not available"
        lines.append(f"  {label} says: {shown}")
    evidence: dict[str, Any] = {
        "context": context,
        "candidates": {label: [asdict(c) for c in cs] for label, cs in sides.items()},
    }
    return "\n".join(lines), evidence


def _decoder(llm: LLM | None) -> Callable[[list[int]], str]:
    if llm is None or llm.config.options.skip_tokenizer_init:
        return lambda ids: " ".join(map(str, ids))
    tokenizer = llm.get_tokenizer()
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def _token(token_id: int | None, decode: Callable[[list[int]], str]) -> str:
    return "(ended)" if token_id is None else f"{decode([token_id])!r} ({token_id})"
