"""Kernels that only move bytes: norms, activations, copies."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.roofline import Work

# One curve for all of them.
STREAM_POINT: Final = np.zeros((1, 1))


def stream_work(traffic_bytes: FloatArray) -> Work:
    """`[...]` bytes read and written."""
    nothing = np.zeros(np.shape(traffic_bytes))
    return Work(np.asarray(traffic_bytes, dtype=np.float64), nothing, nothing)
