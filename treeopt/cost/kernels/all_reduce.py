"""Messages that several GPUs sum."""

from __future__ import annotations

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.roofline import Work


def all_reduce_work(message_bytes: FloatArray, tp: FloatArray) -> Work:
    """`[...]` message summed over `tp` GPUs: each sends 2 (tp - 1) / tp of it, as around a ring.

    1 MB over 4 GPUs: 1.5 MB from each. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    sent = 2.0 * (tp - 1.0) / tp * message_bytes
    return Work(traffic_bytes=sent, flops=np.zeros(np.shape(sent)), units=np.zeros(np.shape(sent)))


def all_reduce_point(tp: FloatArray) -> FloatArray:
    """`[..., 1]` what tells all-reduces apart."""
    return np.log(np.asarray(tp, dtype=np.float64))[..., None]
