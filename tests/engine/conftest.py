"""Engines on the toy model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine import LLM
from engine.tokenizer import Tokenizer, load_tokenizer

SMALL = {"max_model_len": 64, "block_size": 4, "num_kv_blocks": 96, "max_num_seqs": 4, "num_threads": 1}


@pytest.fixture
def new_llm(toy_model: str) -> Iterator[Callable[..., LLM]]:
    """A factory of engines on the toy model; all are shut down at the end."""
    made: list[LLM] = []

    def make(**options: Any) -> LLM:
        made.append(LLM(options.pop("model", toy_model), **SMALL | options))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()


@pytest.fixture(scope="session")
def tokenizer(toy_model: str) -> Tokenizer:
    return load_tokenizer(toy_model)
