"""The distribution that `Kernels.sample` draws from, as numbers: for verification by rejection sampling.

Every operation is elementwise and correctly rounded, or a sum in index order, so a row does not depend on the others (law 8).
"""

from __future__ import annotations

import torch

from kernels.elementary import exp64

__all__ = ["probabilities"]


def probabilities(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """logits [R, V] f32 (finite, or -inf where masked), the others [R] as `Kernels.sample` takes them, temperature > 0.

    Returns [R, V] float64: softmax of logits / temperature after min_p, top_k and top_p, in this order, each on what the one
    before kept; ties as in `Kernels.sample`.
    """
    scaled = logits.double() / temperature.double()[:, None]
    masses = exp64(scaled - scaled.amax(dim=1, keepdim=True))
    kept = masses >= min_p.double()[:, None]
    if (top_k > 0).any() or (top_p < 1).any():
        order = torch.argsort(logits, dim=1, descending=True, stable=True)
        falling = kept.gather(1, order)
        limit = torch.where(top_k > 0, top_k, logits.shape[1])[:, None]
        falling &= falling.cumsum(dim=1) <= limit
        total = _total(masses.masked_fill(~torch.zeros_like(kept).scatter(1, order, falling), 0.0))
        reached = masses.gather(1, order).masked_fill(~falling, 0.0).cumsum(dim=1)
        enough = reached >= top_p.double()[:, None] * total
        up_to_first = enough.cumsum(dim=1) - enough.long() == 0
        falling &= up_to_first | (top_p >= 1)[:, None]
        kept = torch.zeros_like(kept).scatter(1, order, falling)
    masses = masses.masked_fill(~kept, 0.0)
    return masses / _total(masses)


def _total(masses: torch.Tensor) -> torch.Tensor:
    """[R, V] -> [R, 1]: one chain in index order."""
    return masses.cumsum(dim=1)[:, -1:]
