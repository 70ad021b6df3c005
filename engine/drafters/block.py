"""Drafters that fill in a block of mask tokens in one pass: DFlash (arXiv 2602.06036) and DSpark (2607.05147).

In the layout of the speculators library, as vLLM reads it (`qwen3_dflash.py`, `qwen3_dspark.py`). The block of a sequence with
n known tokens is the last of them at n - 1 and masks at n, n + 1, ...; what comes out at a mask is the proposal for its place.
Some of the target's states, beside one another, through `fc` and `hidden_norm` are the context. In every layer the keys and
values of the positions before the block are projections of the same context (no input norm, no update from layer to layer); a
block sees these and all of itself, also ahead, so what it proposes depends on its size too. The layers are Qwen3's, embedding
and LM head the target's.

DSpark adds two small heads. The Markov head adds W2 W1[t] to the logits of a place, t being the token before it, so that a
proposal agrees with the one before it. The confidence head gives the probability that a proposal is accepted if those before it
are; with `enable_adaptive_verification` a row proposes only as far as the product of these stays at `confidence_threshold`.

Shapes: M places, D = the target's hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.checkpoint import ModelConfig, layer_tensors
from engine.checkpoint.weights import Shape
from engine.drafters.base import AcceptedStep, DraftContext, Drafts, Ints, Target
from engine.drafters.chain import drafter_file, layer_loader
from engine.drafters.eagle import target_layer_ids
from engine.drafters.options import model_option, positive_option
from engine.drafters.paged import PagedDrafter, as_tensor
from engine.layer import Layer, WeightLoader, new_kv_cache
from engine.ragged import arange_each
from engine.rope import rope_tables

__all__ = ["DFlashDrafter", "DSparkDrafter"]

DEFAULT_THRESHOLD = 0.3


class Block(NamedTuple):
    """The rows that get proposals."""

    slots: Ints
    num_tokens: Ints
    counts: Ints  # masks of each


class DFlashDrafter(PagedDrafter):
    has_distribution: ClassVar[bool] = True
    method: ClassVar[str] = "dflash"
    option_names: ClassVar[tuple[str, ...]] = ("model", "max_model_len", "draft_tensor_parallel_size")

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        model_option(self.method, options)
        self.max_model_len = positive_option(options, "max_model_len")

    def load(self, target: Target) -> None:
        super().load(target)
        file = drafter_file(self.method, self.options)
        fields = file.fields
        self.config = config = file.layer_config("Qwen3ForCausalLM")
        file.check_target(target.model.config, hidden_size=config.hidden_size, vocab_size=config.vocab_size)
        if fields.flag("sample_from_anchor"):
            raise fields.error("sample_from_anchor is true, which is not supported")
        self.mask_token_id = fields.get("mask_token_id")
        if type(self.mask_token_id) is not int or not 0 <= self.mask_token_id < config.vocab_size:
            raise fields.error(f"mask_token_id is {self.mask_token_id!r}, expected a token id")
        self.block_size = fields.integer("block_size")
        if self.num_speculative_tokens >= self.block_size:
            raise fields.error(
                f"a block of {self.block_size} has room for {self.block_size - 1} proposals; "
                f"num_speculative_tokens={self.num_speculative_tokens} is too many"
            )
        self.layer_ids = target_layer_ids(fields.get("aux_hidden_state_layer_ids"), target, fields.source)
        file.require(self.shapes(config))
        self.limit_positions(config, self.max_model_len)
        self._rope = rope_tables(config, self.max_positions)
        self._caches = [new_kv_cache(config, target.num_kv_blocks, target.block_size) for _ in range(config.num_layers)]
        self.load_weights(layer_loader(file, target))

    def shapes(self, config: ModelConfig) -> dict[str, Shape]:
        """Name -> shape of every tensor that the file must have."""
        size = config.hidden_size
        shapes: dict[str, Shape] = {
            "fc.weight": (size, len(self.layer_ids) * size),
            "hidden_norm.weight": (size,),
            "norm.weight": (size,),
        }
        for i in range(config.num_layers):
            shapes |= layer_tensors(config, f"layers.{i}.")
        return shapes

    def load_weights(self, loader: WeightLoader) -> None:
        prefixes = [f"layers.{i}." for i in range(self.config.num_layers)]
        self.fc, self.hidden_norm = loader.packed("fc.weight"), loader.vector("hidden_norm.weight")
        self.layers = [Layer(loader, prefix, self.config) for prefix in prefixes]
        # The context needs keys and values only.
        self.key_value = [loader.packed(*(f"{p}self_attn.{part}_proj.weight" for part in "kv")) for p in prefixes]
        self.norms = [loader.vector(f"{prefix}input_layernorm.weight") for prefix in prefixes]
        self.norms.append(loader.vector("norm.weight"))

    def advance(self, step: AcceptedStep) -> None:
        """Write the context's entries for the states that have become final."""
        taken = self.states_to_take(step)
        if taken is None:
            return
        kernels, config = self.kernels, self.config
        states = torch.cat([layer[taken.places] for layer in step.hidden.layers], dim=1)
        context = kernels.rms_norm(kernels.linear(states, self.fc), self.hidden_norm, config.rms_norm_eps)
        batch = self.batch(taken.slot_of_state, taken.positions, taken.positions)
        for layer, weight, cache in zip(self.layers, self.key_value, self._caches, strict=True):
            both = kernels.linear(context, weight).view(-1, 2 * config.num_kv_heads, config.head_dim)
            key = both[:, : config.num_kv_heads].contiguous()
            if layer.k_norm is not None:
                key = kernels.rms_norm(key, layer.k_norm, config.rms_norm_eps)
            kernels.rope(key, batch.positions, *self._rope)
            kernels.store_kv(key, both[:, config.num_kv_heads :], *cache, batch.slot_mapping)

    def propose(self, context: DraftContext) -> Drafts:
        slots = context.slots
        drafts = np.zeros((len(slots), self.num_speculative_tokens), dtype=np.int32)
        # The whole context must be there; the block of m proposals takes entries up to position n - 1 + m.
        ready = self.num_done[slots] == context.num_tokens - 1
        counts = np.where(ready, np.minimum(context.max_drafts, self.reach(slots) - context.num_tokens), 0)
        counts = np.maximum(counts, 0)
        active = np.flatnonzero(counts)
        if len(active):
            block = Block(slots[active], context.num_tokens[active], counts[active])
            drafts[active], counts[active] = self.choose(self._block_states(block), block)
        return drafts, counts

    def _block_states(self, block: Block) -> torch.Tensor:
        """What the LM head reads at the masks: [sum(counts), D], row after row."""
        slots, num_tokens, counts = block
        sizes = counts + 1
        slot_of_place, place = np.repeat(slots, sizes), arange_each(sizes)
        positions = np.repeat(num_tokens - 1, sizes) + place
        token_ids = np.where(place == 0, self.tokens_at(slot_of_place, positions), self.mask_token_id)
        batch = self.batch(slot_of_place, positions, token_ids, visible=np.repeat(num_tokens - 1 + counts, sizes))
        kernels, eps = self.kernels, self.config.rms_norm_eps
        residual = kernels.embedding(self.target.model.embedding, batch.token_ids)
        x = kernels.rms_norm(residual, self.norms[0], eps)
        for layer, cache, norm in zip(self.layers, self._caches, self.norms[1:], strict=True):
            x = layer.forward(kernels, x, residual, cache, self._rope, batch)
            x = kernels.add_rms_norm(x, residual, norm, eps)
        return x[as_tensor(np.flatnonzero(place > 0))]

    def choose(self, hidden: torch.Tensor, block: Block) -> Drafts:
        """hidden: see `_block_states`."""
        slots, num_tokens, counts = block
        rows, places = np.repeat(np.arange(len(counts)), counts), arange_each(counts)
        logits = self.kernels.linear(hidden, self.target.model.lm_head)
        drafts = np.full((len(counts), self.num_speculative_tokens), -1, dtype=np.int32)
        drafts[rows, places] = self.target.pick(logits, slots[rows], num_tokens[rows] + places, places)
        return usable(drafts, counts)


def usable(drafts: npt.NDArray[np.int32], counts: Ints) -> tuple[npt.NDArray[np.int32], Ints]:
    """Proposals up to the first that is -1: where nothing was finite, a row ends."""
    good = np.cumprod(drafts >= 0, axis=1).sum(axis=1)
    return np.maximum(drafts, 0), np.minimum(counts, good)


class DSparkDrafter(DFlashDrafter):
    method: ClassVar[str] = "dspark"
    option_names: ClassVar[tuple[str, ...]] = (
        *DFlashDrafter.option_names,
        "enable_adaptive_verification",
        "confidence_threshold",
    )

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        is_adaptive = options.get("enable_adaptive_verification", False)
        if not isinstance(is_adaptive, bool):
            raise ValueError(f"enable_adaptive_verification must be True or False, got {is_adaptive!r}.")
        threshold = options.get("confidence_threshold", DEFAULT_THRESHOLD)
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
            raise ValueError(f"confidence_threshold must be a number from 0 to 1, got {threshold!r}.")
        self.threshold = float(threshold) if is_adaptive else None

    def load(self, target: Target) -> None:
        fields = drafter_file(self.method, self.options).fields
        self.markov_rank = fields.integer("markov_rank")
        if fields.get("markov_head_type") not in (None, "vanilla"):
            raise fields.error(f"markov_head_type is {fields.get('markov_head_type')!r}, supported is 'vanilla'")
        has_confidence = fields.flag("enable_confidence_head") and fields.flag("confidence_head_with_markov")
        if self.threshold is not None and not has_confidence:
            raise fields.error("enable_adaptive_verification needs a confidence head that reads the Markov head")
        super().load(target)

    def shapes(self, config: ModelConfig) -> dict[str, Shape]:
        vocab, rank = config.vocab_size, self.markov_rank
        heads: dict[str, Shape] = {f"markov_head.markov_w{i}.weight": (vocab, rank) for i in (1, 2)}
        if self.threshold is not None:
            heads |= {"confidence_head.proj.weight": (1, config.hidden_size + rank), "confidence_head.proj.bias": (1,)}
        return super().shapes(config) | heads

    def load_weights(self, loader: WeightLoader) -> None:
        super().load_weights(loader)
        self.w1, self.w2 = (loader.packed(f"markov_head.markov_w{i}.weight") for i in (1, 2))
        if self.threshold is not None:
            self.confidence = loader.packed("confidence_head.proj.weight")
            self.confidence_bias = loader.vector("confidence_head.proj.bias")

    def choose(self, hidden: torch.Tensor, block: Block) -> Drafts:
        kernels, (slots, num_tokens, counts) = self.kernels, block
        base = kernels.linear(hidden, self.target.model.lm_head)
        drafts = np.full((len(counts), self.num_speculative_tokens), -1, dtype=np.int32)
        firsts, previous = np.cumsum(counts) - counts, self.tokens_at(slots, num_tokens - 1)
        likely = np.ones(len(counts))  # that all proposals so far are accepted
        for place in range(int(counts.max())):
            active = np.flatnonzero(counts > place)
            if not len(active):
                break
            at = as_tensor(firsts[active] + place)
            embedded = kernels.embedding(self.w1, as_tensor(previous[active]))
            logits = base[at] + kernels.linear(embedded, self.w2)
            choices = self.target.pick(logits, slots[active], num_tokens[active] + place, np.full_like(active, place))
            if self.threshold is not None:
                read = torch.cat((hidden[at], embedded), dim=1)
                confidence = kernels.linear(read, self.confidence, self.confidence_bias)[:, 0].tolist()
                likely[active] *= [1 / (1 + math.exp(-value)) for value in confidence]
                choices = np.where(likely[active] < self.threshold, -1, choices)
            drafts[active, place] = choices
            counts = np.where(drafts[:, place] < 0, np.minimum(counts, place), counts)
            previous[active] = np.maximum(choices, 0)
        return usable(drafts, counts)
