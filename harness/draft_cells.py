"""The cells of the suites on the zoo's drafters and on distributions, by their names; see `harness.cells`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.parts import load_parts
from harness.acceptance import assert_within, by_category, categorized_items, embedded_prompts
from harness.acceptance_bounds import ACCEPTANCE_PARAMS, NUM_DRAFTS, acceptance_options
from harness.compare import (
    assert_acceptance_exactly,
    assert_async_was_on,
    assert_conservation,
    assert_exercised,
    assert_same_drafts,
)
from harness.distribution import Draws, assert_follows, assert_lossless, draw_many, expected_distributions
from harness.engines import open_engine
from harness.judge import Judge
from harness.spec_methods import METHODS
from harness.workload import Run, run_workload
from harness.workloads import BLOCK_SIZE, real_items, tight_pool, zoo_prompts

__all__ = ["EVENTS", "FILTERS", "bounds_cell", "identity_cell", "neighbours_cell", "rejection_cell", "run_draft_model"]

BOUNDS_FILE = Path(__file__).parent / "acceptance_bounds.toml"
SMALL = {"max_model_len": 512, "block_size": BLOCK_SIZE}
EVENTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "roomy": ({"num_kv_blocks": 256}, ("num_prefix_hits",)),
    "chunked": ({"num_kv_blocks": 256, "max_num_batched_tokens": 40}, ("num_partial_prefills",)),
    "preempted": ({"num_kv_blocks": "tight"}, ("num_preemptions",)),
}
NUM_DRAWS = 100_000
VOCABULARY = 8
FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.4},
    "top-k": {"top_k": 3},
    "top-p": {"top_p": 0.7},
    "all-filters": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
}


def bounds_cell(name: str, *, plugins: Sequence[str] = (), judge: Judge | None = None) -> tuple[Run, Mapping[str, Any]]:
    """Word problems and every text task, greedy: lengths within what was measured. Returns the run and the config's record."""
    judge = judge or Judge()
    method = METHODS[name]
    bounds = tomllib.loads(BOUNDS_FILE.read_text(encoding="utf-8"))["methods"][name]
    with open_engine(method.target, acceptance_options(method) | {"plugins": plugins}) as llm:
        prompts = embedded_prompts(llm)
        run = run_workload(llm, categorized_items(prompts, ACCEPTANCE_PARAMS), label=name, audit=False)
        if method.supports_async:
            with judge:
                assert_async_was_on(llm, run, case=name)
        config = llm.config.as_record()
    with judge:
        assert_conservation(run, case=name)
    parts = by_category(run, NUM_DRAFTS)
    for category, limits in bounds.items():
        with judge:
            assert_within(parts[category], limits, case=f"{name}, {category}")
    return run, config


def run_draft_model(model: str, event: str, depth: int, *, label: str, plugins: Sequence[str] = ()) -> Run:
    """Real questions, greedy, with a draft model on `zoo:tiny`; the event really happened."""
    items = real_items("greedy", zoo_prompts("zoo:tiny"))
    options, exercised = EVENTS[event]
    if options["num_kv_blocks"] == "tight":
        options = options | {"num_kv_blocks": tight_pool(items, BLOCK_SIZE, depth)}
    config = {"method": "draft_model", "model": model, "num_speculative_tokens": depth}
    options = SMALL | {"max_num_seqs": 4, **options, "speculative_config": config, "plugins": plugins}
    with open_engine("zoo:tiny", options) as llm:
        run = run_workload(llm, items, label=label)
        assert_async_was_on(llm, run, case=label)
    assert_exercised(run, "num_drafts", *exercised, case=label)
    return run


def identity_cell(event: str, depth: int, *, plugins: Sequence[str] = (), judge: Judge | None = None) -> int:
    """A draft model that is the target is always right. Returns how many drafted tokens were judged."""
    case = f"identity-{event}-{depth}"
    run = run_draft_model("zoo:tiny", event, depth, label=case, plugins=plugins)
    judged = 0
    with judge or Judge():
        judged = assert_acceptance_exactly(run, 1, case=case)
    return judged


def neighbours_cell(name: str, *, plugins: Sequence[str] = (), judge: Judge | None = None) -> int:
    """The same drafts alone in a new engine, together, and together again over a cache that has the prompts.

    Alone is always without `plugins`. Returns how many requests were compared.
    """
    judge = judge or Judge()
    method = METHODS[name]
    items = real_items("greedy", zoo_prompts(method.target))
    alone: dict[str, Any] = {}
    for item in items:
        with open_engine(method.target, acceptance_options(method) | SMALL) as llm:
            alone |= run_workload(llm, [item], label="alone").outputs
            stats = llm.stats
    expected = Run("alone", alone, stats)
    with open_engine(method.target, acceptance_options(method) | SMALL | {"plugins": plugins}) as llm:
        together = run_workload(llm, items, label="together")
        again = run_workload(llm, items, label="over a cached prefix")
    compared = 0
    with judge:
        assert_exercised(again, "num_prefix_hits", "num_drafts", case=name)
    for run in (together, again):
        with judge:
            compared += assert_same_drafts(expected, run, case=name)
    return compared


def rejection_cell(
    filters: str, method: str, closeness: float, *, plugins: Sequence[str] = (), judge: Judge | None = None
) -> int:
    """What rejection sampling emits follows the target at every place. Returns the number of tests."""
    judge = judge or Judge()
    target, draft = _tables(closeness)
    case = f"{filters}-{method}-{closeness}"
    draws = draw_many(
        target, draft, n=NUM_DRAWS, depth=2, draft_sample_method=method, parts=load_parts(plugins), **FILTERS[filters]
    )
    exact = expected_distributions(target, **FILTERS[filters])
    tests = 0
    with judge:
        tests += assert_lossless(draws, exact, case=case)
    with judge:
        temperature = FILTERS[filters].get("temperature", 1.0)
        tests += _assert_recovered(draws, exact, draft, method, case=case, temperature=temperature)
    return tests


def _tables(closeness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a target and of a draft that agrees with it more or less (1: entirely)."""
    generator = torch.Generator().manual_seed(20242)
    target, other = (torch.randn(VOCABULARY, VOCABULARY, generator=generator) * 1.5 for _ in range(2))
    return target, closeness * target + (1 - closeness) * other


def _assert_recovered(
    draws: Draws, target: npt.NDArray[np.float64], draft: torch.Tensor, method: str, *, case: str, temperature: float
) -> int:
    """Given a rejection at the first place, the token follows max(0, p - q); how often drafts stand follows min(p, q)."""
    p = target[0]
    q = expected_distributions(draft, temperature=temperature)[0]
    if method == "greedy":
        q = np.eye(VOCABULARY)[int(draft[0].argmax())]
    stands = draws.num_emitted > 1
    share = np.minimum(p, q).sum()
    all_stand = share > 1 - 1e-9
    shares = np.array([0.0, 1.0] if all_stand else [1 - share, share])
    assert_follows(stands.astype(np.int64), shares, case=f"{case}, how many stand")
    rest = np.maximum(p - q, 0)
    if all_stand:
        return 1
    assert_follows(draws.emitted[~stands, 0], rest / rest.sum(), case=f"{case}, given a rejection")
    return 2
