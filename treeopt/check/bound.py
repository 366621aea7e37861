"""The most that guesses of a tree's ranks can give: every combination of them verified."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.acceptance.model import PathModel
from treeopt.tree import DraftTree

_MAX_PATHS: Final = 200_000


def cover_bound(model: PathModel, tree: DraftTree) -> float | None:
    """1 + the probability at each depth that all guesses so far were among the tree's ranks there.

    Whatever a tree of these ranks and this depth holds, it accepts no more. None where the evidence does not reach, or
    the full tree is too large to be summed.
    """
    if tree.depth > model.depth:
        return None
    widths = [int(tree.ranks[tree.depths == depth].max()) + 1 for depth in range(1, tree.depth + 1)]
    paths, reached = np.zeros((1, 0), dtype=np.int64), np.ones(1)
    bound = 1.0
    for width in widths:
        if width > model.ranks or len(paths) * width > _MAX_PATHS:
            return None
        rows = model.conditional(paths)[:, :width]
        if model.product_form:
            reached = reached * rows.sum(axis=1)
            paths = np.zeros((1, paths.shape[1] + 1), dtype=np.int64)
        else:
            guesses = np.tile(np.arange(width), len(paths))[:, None]
            paths = np.concatenate([np.repeat(paths, width, axis=0), guesses], axis=1)
            reached = (reached[:, None] * rows).ravel()
        bound += float(reached.sum())
    return bound
