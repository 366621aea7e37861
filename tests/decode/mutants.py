"""Steps as wrong implementations build them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from treeopt.decode.step import ForwardBatch


def causal(step: ForwardBatch) -> ForwardBatch:
    """The flattened nodes as if they were text."""
    slots, own = np.arange(step.slots), np.arange(step.tokens.shape[1])
    return replace(step, mask=slots <= (step.starts[:, None] + own)[..., None])


def sequential(step: ForwardBatch) -> ForwardBatch:
    """Positions by node, not by depth."""
    return replace(step, positions=step.starts[:, None] + np.arange(step.tokens.shape[1]))


def prefix_hidden(step: ForwardBatch) -> ForwardBatch:
    """The tree alone."""
    return replace(step, mask=step.mask & (np.arange(step.slots) >= step.starts[:, None, None]))
