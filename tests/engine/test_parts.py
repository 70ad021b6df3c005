"""Plugins change the parts of one engine, in every process of it, and of no other engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine import LLM, SamplingParams
from engine.parts import Parts, load_parts
from engine.sampler import Sampler

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
not_callable = 3


class _SecondBest(Sampler):
    """Never the most likely token."""

    def argmax(self, logits: torch.Tensor) -> npt.NDArray[np.int64]:
        second: npt.NDArray[np.int64] = logits.topk(2).indices[:, 1].numpy()
        return second


def second_best(parts: Parts) -> Parts:
    return replace(parts, sampler=_SecondBest)


def nothing(parts: Parts) -> None:
    return None


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_a_plugin_changes_its_own_engine_in_every_process(new_llm: Callable[..., LLM], executor: str) -> None:
    changed = new_llm(plugins=f"{__name__}:second_best", distributed_executor_backend=executor)
    plain = new_llm(distributed_executor_backend=executor)
    ids = [llm.generate([[65, 66]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids for llm in (changed, plain)]
    assert all(a != b for a, b in zip(*(i[:1] for i in ids), strict=True))
    assert ids[1] == new_llm().generate([[65, 66]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_without_plugins_the_parts_are_the_engines_own() -> None:
    assert load_parts(["harness.scripted"]) == Parts()


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (f"{__name__}:missing", r"has no function 'missing' that takes an engine's Parts"),
        (f"{__name__}:not_callable", r"has no function 'not_callable'"),
        (f"{__name__}:nothing", r"must return the Parts to use, got NoneType"),
    ],
)
def test_a_plugin_that_is_none(plugin: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_parts([plugin])
