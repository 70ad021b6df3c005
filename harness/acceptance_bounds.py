"""Measures the bounds of the acceptance suite: `python -m harness.acceptance_bounds > harness/acceptance_bounds.toml`.

A bound is the 95 % interval of the length that this engine has now. The engine's own figure is the same on every machine, so
what leaves the interval is a change of the engine or of the drafter, or another engine that drafts worse.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from engine import SamplingParams
from harness.acceptance import Acceptance, embedded_prompts, measure
from harness.engines import open_engine
from harness.spec_methods import METHODS, SpecMethod

__all__ = ["ACCEPTANCE_PARAMS", "NUM_DRAFTS", "acceptance_options", "main"]

NUM_DRAFTS = 3
ACCEPTANCE_PARAMS = SamplingParams(temperature=0, max_tokens=128)
HEAD = """\
# Acceptance length of the zoo's drafters on the embedded prompts, greedy, K = 3: [floor, ceiling] by category, with the number
# of requests and the value measured. The bounds are the 95 % interval of the bootstrap over requests.
# Made by: python -m harness.acceptance_bounds > harness/acceptance_bounds.toml
"""


def acceptance_options(method: SpecMethod) -> dict[str, object]:
    """Options of the engine for a method of the table."""
    return {
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "speculative_config": method.speculative_config(min(NUM_DRAFTS, method.max_depth)),
        "async_scheduling": None if method.supports_async else False,
    }


def as_toml(name: str, parts: Mapping[str, Acceptance]) -> str:
    lines = [f"\n[methods.{name}]"]
    for category, part in parts.items():
        interval = part.interval
        if interval is not None and part.num_drafts:
            low, high = interval.low, interval.high
            lines.append(
                f"{category} = {{ length = [{low:.3f}, {high:.3f}], n = {part.num_requests}, value = {part.length:.3f} }}"
            )
    return "\n".join(lines)


def main() -> None:
    print(HEAD, end="")
    for name, method in METHODS.items():
        with open_engine(method.target, acceptance_options(method)) as llm:
            parts = measure(llm, embedded_prompts(llm), ACCEPTANCE_PARAMS, label=name)
        print(as_toml(name, parts))
        print(name, f"{parts['all'].length:.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
