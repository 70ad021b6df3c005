"""Every drafter with weights proposes in the engine what the plain training code proposes from the same tokens.

The weights are untrained: what is compared is the arithmetic, the positions and the bookkeeping of entries, not quality.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams
from engine.checkpoint import resolve_model
from engine.drafters.base import DraftContext, Drafter, Drafts
from engine.drafters.block import DFlashDrafter
from engine.drafters.chain import ChainDrafter
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.medusa import MedusaDrafter
from harness.datasets.word_problems import fixed_split
from harness.prompts import prompt_text
from harness.zoo.training.drafting import FrozenTarget

TARGET = "zoo:tiny"
KINDS = ("draft_model", "pard", "eagle", "eagle3", "mtp", "medusa", "dflash", "dspark")
K = 3
PROMPTS = [prompt_text(problem.question) for problem in fixed_split()[:6]]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> FrozenTarget:
    return FrozenTarget(resolve_model(TARGET))


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, target: FrozenTarget, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind: str = request.param
    module = importlib.import_module(f"harness.zoo.training.kinds.{kind}")
    objective = module.objective(module.RECIPES[0], target)
    with torch.no_grad():
        for name, parameter in objective.parameters.items():
            if not parameter.any():  # heads that start at zero would propose what their input is
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) * 0.2)
    directory = tmp_path_factory.mktemp("drafters") / kind
    module.export(objective, directory)
    return kind, directory


def speculative(kind: str, directory: Path, **options: Any) -> dict[str, Any]:
    config = {"method": "draft_model" if kind == "pard" else kind, "num_speculative_tokens": K, **options}
    if kind != "mtp":
        config["model"] = str(directory)
    if kind == "pard":
        config["parallel_drafting"] = True
    return config


def engine(kind: str, directory: Path, **options: Any) -> LLM:
    chosen = {"num_threads": 1, "max_num_seqs": 4, "max_model_len": 512, "dtype": "float32"} | options
    return LLM(model=str(directory) if kind == "mtp" else TARGET, speculative_config=speculative(kind, directory), **chosen)


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, ...], list[int]]:
    """Known tokens -> what was proposed behind them, for every round of every engine of the test.

    It fails where the same tokens get two different proposals. Those of a block depend on its size, since it sees itself also
    ahead, so there only rounds of the same size are compared.
    """
    seen: dict[tuple[int, ...], list[int]] = {}

    def watch(cls: type[Drafter]) -> None:
        real = cls.propose

        def propose(self: Drafter, context: DraftContext) -> Drafts:
            drafts, counts = real(self, context)
            for slot, known, row, count in zip(context.slots, context.num_tokens, drafts, counts, strict=True):
                key = tuple(context.tokens[slot, :known].tolist())
                found = row[:count].tolist()
                before = seen.setdefault(key, found)
                shared = min(len(before), len(found))
                if len(before) == len(found) or not issubclass(cls, DFlashDrafter):
                    assert before[:shared] == found[:shared]
                if len(found) > len(before):
                    seen[key] = found
            return drafts, counts

        monkeypatch.setattr(cls, "propose", propose)

    for cls in (DFlashDrafter, ChainDrafter, DraftModelDrafter, MedusaDrafter):
        watch(cls)
    return seen


def test_the_engine_proposes_what_the_training_code_proposes(
    made: tuple[str, Path], target: FrozenTarget, proposals: dict[tuple[int, ...], list[int]]
) -> None:
    kind, directory = made
    module = importlib.import_module(f"harness.zoo.training.kinds.{kind}")
    recipe = replace(module.RECIPES[0])
    reference = module.load(directory, target)
    assert recipe.target == "tiny"
    with engine(kind, directory) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        llm.check_integrity()
    assert len(proposals) > 100
    wrong = 0
    for known, found in proposals.items():
        states = target.forward(torch.tensor([list(known[:-1])]))
        expected = reference.propose(list(known), states, len(found))
        wrong += expected != found
    assert wrong <= 0.01 * len(proposals), f"{wrong} of {len(proposals)} rounds differ"  # near-ties of two arithmetics


def test_nothing_but_the_tokens_decides_what_is_proposed(
    made: tuple[str, Path], proposals: dict[tuple[int, ...], list[int]]
) -> None:
    """Preemption, chunks, cached prefixes and neighbours: the fixture compares every round with all those before it."""
    kind, directory = made
    texts = []
    for options in (
        {},
        {"async_scheduling": False},
        {"max_num_batched_tokens": 24},
        {"num_kv_blocks": 33, "max_num_seqs": 6},
        {"enable_prefix_caching": False, "max_num_seqs": 1},
    ):
        if kind == "medusa":
            options = {**options, "async_scheduling": False}
        with engine(kind, directory, **options) as llm:
            for _ in range(2):
                outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
                texts.append([output.outputs[0].token_ids for output in outputs])
                llm.check_integrity()
    assert all(text == texts[0] for text in texts)
    assert proposals


def test_padded_and_compacted_drafting_propose_the_same(
    made: tuple[str, Path], proposals: dict[tuple[int, ...], list[int]]
) -> None:
    kind, directory = made
    texts = []
    for compacted in (False, True):
        config = speculative(kind, directory, disable_padded_drafter_batch=compacted)
        model = str(directory) if kind == "mtp" else TARGET
        with LLM(model=model, speculative_config=config, async_scheduling=False, num_threads=1, max_num_seqs=4) as llm:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            texts.append(([output.outputs[0].token_ids for output in outputs], dict(proposals)))
    assert texts[0] == texts[1]


def test_a_cached_block_does_not_remember_what_came_behind_it(
    made: tuple[str, Path], proposals: dict[tuple[int, ...], list[int]]
) -> None:
    """Prompts that part right behind a whole number of blocks: an entry that depends on the next token must not be shared."""
    kind, directory = made
    with engine(kind, directory, **({"async_scheduling": False} if kind == "medusa" else {})) as llm:
        ids = llm.get_tokenizer().encode(PROMPTS[0])[:32]
        prompts = [[*ids, *[last] * 3] for last in range(300, 306)]
        hits = []
        for prompt in prompts:  # one after another, so that each finds the prefix of those before
            llm.generate([prompt], GREEDY, use_tqdm=False)
            hits.append(llm.stats.num_prefix_hits)
    assert hits[-1] > 0
    with engine(kind, directory, enable_prefix_caching=False, async_scheduling=False) as llm:
        llm.generate(prompts, GREEDY, use_tqdm=False)
