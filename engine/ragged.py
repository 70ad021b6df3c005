"""Index arithmetic for ragged batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["arange_each"]


def arange_each(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0..counts[0]-1, 0..counts[1]-1, ... as one array."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
