"""The accept rule of coupled verification: a draft stands if it equals what the target itself chose at its position."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["accept_coupled"]

Ints = npt.NDArray[np.int64]


def accept_coupled(choices: Ints, drafts: Ints, num_drafts: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """How many of the target's choices are emitted.

    choices [rows, K + 1]: what the target chose behind the last token and behind each draft (-1: its logits were NaN); drafts
    [rows, K], of which the first num_drafts [rows] count. Returns (num_emitted [rows], nan [rows]): the choices up to the first
    one that its draft did not foresee, that one included; where that one is NaN it is left out, and `nan` says so.

    A choice depends on the tokens before it and on its address alone, so what is emitted is what single steps would emit.
    """
    depth = drafts.shape[1]
    agree = (choices[:, :depth] == drafts) & (np.arange(depth) < num_drafts[:, None])
    num_accepted = np.cumprod(agree, axis=1, dtype=np.int64).sum(axis=1)
    nan = choices[np.arange(len(choices)), num_accepted] < 0
    return num_accepted + 1 - nan, nan
