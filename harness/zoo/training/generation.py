"""Greedy generation in batches, to measure a model during its training (the engine is the judge of a finished one)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from harness.zoo.training.transformer import Decoder

__all__ = ["greedy"]


@torch.no_grad()
def greedy(model: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, eos: int, pad: int) -> list[list[int]]:
    """The greedy continuation of each prompt, without the EOS that ends it. One batch, padded on the left, with a KV cache."""
    longest = max(len(prompt) for prompt in prompts)
    padding = torch.tensor([longest - len(prompt) for prompt in prompts])
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    caches: list[tuple[torch.Tensor, torch.Tensor]] = []
    answers: list[list[int]] = [[] for _ in prompts]
    running = [True] * len(prompts)
    for start in range(longest, longest + max_new_tokens):
        choice = _last_logits(model, ids, start - ids.shape[1], padding, caches).argmax(-1)
        for row, token in enumerate(choice.tolist()):
            running[row] = running[row] and token != eos
            if running[row]:
                answers[row].append(token)
        if not any(running):
            break
        ids = choice[:, None]
    return answers


def _last_logits(
    model: Decoder, ids: torch.Tensor, start: int, padding: torch.Tensor, caches: list[tuple[torch.Tensor, torch.Tensor]]
) -> torch.Tensor:
    """Logits [B, V] after ids [B, T], at the padded rows' columns start..; their keys and values join the caches."""
    columns = torch.arange(start, start + ids.shape[1])
    positions = (columns - padding[:, None]).clamp(min=0)
    cos, sin = model.cos[positions][:, None], model.sin[positions][:, None]
    keys = torch.arange(start + ids.shape[1])
    visible = (keys <= columns[:, None]) & (keys >= padding[:, None, None])  # [B, T, columns so far]
    # A padding query sees itself, so that no row of the softmax is empty.
    mask = (visible | (keys == columns[:, None]))[:, None]
    x = F.embedding(ids, model.weights["model.embed_tokens.weight"])
    for i in range(model.config.num_layers):
        q, k, v = model.qkv(i, x, cos, sin)
        if start:
            k, v = torch.cat((caches[i][0], k), dim=2), torch.cat((caches[i][1], v), dim=2)
            caches[i] = (k, v)
        else:
            caches.append((k, v))
        x = model.after_attention(i, x, F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True))
    return F.linear(model.final_norm(x[:, -1]), model.head)
