"""Medusa heads (arXiv 2401.10774) in vLLM's layout: head i guesses the token i + 2 places after the target's last state.

Each head is a chain of blocks, x + silu(W x + b), under an LM head of its own (`lm_heads.i.weight`) or under one for all
(`original_lm_head`). They keep nothing: all proposals of a round come from one state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from engine.checkpoint.weights import Shape
from engine.drafters.base import AcceptedStep, DraftContext, Drafter, Drafts, Target
from engine.drafters.chain import drafter_file, layer_loader
from engine.drafters.options import model_option
from engine.drafters.paged import as_tensor
from kernels.interface import PackedWeight

__all__ = ["MedusaDrafter"]


class MedusaDrafter(Drafter):
    has_distribution: ClassVar[bool] = True
    option_names: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        model_option("medusa", options)

    def load(self, target: Target) -> None:
        file = drafter_file("medusa", self.options)
        fields, size = file.fields, target.model.config.hidden_size
        file.check_target(
            target.model.config, hidden_size=fields.integer("hidden_size"), vocab_size=fields.integer("vocab_size")
        )
        self.num_heads = fields.integer("num_heads")
        if self.num_heads < self.num_speculative_tokens:
            raise fields.error(
                f"there are {self.num_heads} heads, which make at most as many proposals; "
                f"num_speculative_tokens={self.num_speculative_tokens} is too many"
            )
        num_layers, has_bias = fields.integer("num_hidden_layers", 1), fields.flag("medusa_fc_bias")
        shared = fields.flag("original_lm_head")
        blocks = [[f"blocks.{head}.layers.{i}" for i in range(num_layers)] for head in range(self.num_heads)]
        heads = ["lm_head" if shared else f"lm_heads.{head}" for head in range(self.num_heads)]
        shapes: dict[str, Shape] = {f"{name}.weight": (self.vocab_size, size) for name in heads}
        for name in (name for names in blocks for name in names):
            shapes[f"{name}.weight"] = (size, size)
            if has_bias:
                shapes[f"{name}.bias"] = (size,)
        file.require(shapes)
        loader = layer_loader(file, target)
        self.kernels, self.pick = target.model.kernels, target.pick
        self.blocks = [
            [(loader.packed(f"{name}.weight"), loader.vector(f"{name}.bias") if has_bias else None) for name in names]
            for names in blocks
        ]
        packed: dict[str, PackedWeight] = {name: loader.packed(f"{name}.weight") for name in dict.fromkeys(heads)}
        self.heads = [packed[name] for name in heads]
        self._states = torch.zeros(len(target.table.num_tokens), size)  # of each slot's last computed token

    def advance(self, step: AcceptedStep) -> None:
        rows = np.flatnonzero(step.num_computed > step.starts)
        last = step.offsets[rows] + step.num_computed[rows] - 1 - step.starts[rows]
        self._states[as_tensor(step.slots[rows])] = step.hidden.normed[as_tensor(last)]

    def propose(self, context: DraftContext) -> Drafts:
        slots = context.slots
        drafts = np.zeros((len(slots), self.num_speculative_tokens), dtype=np.int32)
        counts = context.max_drafts.copy()
        states = self._states[as_tensor(slots)]
        for place in range(int(counts.max(initial=0))):
            logits = self.kernels.linear(self._through_blocks(states, place), self.heads[place])
            choices = self.pick(logits, slots, context.num_tokens + place, np.full_like(slots, place))
            drafts[:, place] = np.maximum(choices, 0)
            counts[choices < 0] = np.minimum(counts[choices < 0], place)
        return drafts, counts

    def _through_blocks(self, x: torch.Tensor, head: int) -> torch.Tensor:
        for weight, bias in self.blocks[head]:
            gate = self.kernels.linear(x, weight, bias)
            x = x + self.kernels.silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
        return x
