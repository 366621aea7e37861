"""f(v), the probability that a whole rank path is accepted: the one thing the search asks of acceptance data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from treeopt.arrays import FloatArray, IntArray
from treeopt.tree import DraftTree


class PathModel(Protocol):
    """Probabilities of the next rank given a rank path, defined for every path within `depth` and `ranks`.

    Rows are non-negative, non-increasing in the rank and sum to at most 1 (the rest is "no listed guess was
    right"), so f never rises along a path and siblings never exceed their parent.
    """

    @property
    def depth(self) -> int:
        """Deepest level for which there is evidence."""

    @property
    def ranks(self) -> int:
        """K, how many guesses per node there is evidence for."""

    @property
    def product_form(self) -> bool:
        """Whether a row depends on the depth only, so that f is a product of depth-by-rank factors."""

    def conditional(self, paths: IntArray) -> FloatArray:
        """`[n, d]` rank paths of one depth to `[n, K]` probabilities of each rank at depth d + 1."""


@dataclass(frozen=True)
class ModelOver:
    """A path model that is another one but for what its subclass changes."""

    model: PathModel

    @property
    def depth(self) -> int:
        """See `PathModel`."""
        return self.model.depth

    @property
    def ranks(self) -> int:
        """See `PathModel`."""
        return self.model.ranks

    @property
    def product_form(self) -> bool:
        """See `PathModel`."""
        return self.model.product_form

    def conditional(self, paths: IntArray) -> FloatArray:
        """See `PathModel`."""
        return self.model.conditional(paths)


def path_probabilities(model: PathModel, tree: DraftTree) -> FloatArray:
    """`[N]` f of every node; the root has 1, and nodes beyond the measured depth or ranks have 0."""
    f = np.zeros(len(tree))
    f[0] = 1.0
    for depth in range(min(tree.depth, model.depth)):
        parents = np.flatnonzero(tree.depths == depth)
        paths = np.array([tree.nodes[i] for i in parents], dtype=np.int64).reshape(len(parents), depth)
        # A parent beyond the measured ranks has f = 0 already; rank 0 stands in so that the look-up is defined.
        rows = f[parents, None] * model.conditional(np.where(paths < model.ranks, paths, 0))
        row_of = dict(zip(parents.tolist(), rows, strict=True))
        for node in np.flatnonzero(tree.depths == depth + 1).tolist():
            rank = int(tree.ranks[node])
            if rank < model.ranks:
                f[node] = row_of[int(tree.parents[node])][rank]
    return f


def expected_tokens(f: FloatArray) -> float:
    """E = 1 + sum of f over the non-root nodes; exact for greedy verification whatever the joint law."""
    return float(1.0 + f[1:].sum())


def exact_lengths(tree: DraftTree, f: FloatArray) -> FloatArray:
    """`[D + 1]` probability that a step accepts exactly 0, 1, ... D of the tree's tokens, given f of its nodes.

    Worked: a chain of f = 0.7, 0.4 accepts none with 0.3, one with 0.3 and both with 0.4.
    """
    at_least = np.append(np.bincount(tree.depths, f, minlength=tree.depth + 1), 0.0)
    exactly = np.maximum(at_least[:-1] - at_least[1:], 0.0)  # rounded f may rise by the last digit
    return np.asarray(exactly / exactly.sum())


def non_increasing(rows: FloatArray) -> FloatArray:
    """Isotonic regression of each row `[..., K]` on non-increasing sequences, equal weights, sums kept.

    Drafters list their guesses best first, so a worse rank that was right more often is sampling noise (or ties).
    Min-max formula of Barlow, Bartholomew, Bremner and Brunk (1972): g_r = min over s <= r of max over t >= r of
    mean(row[s..t]). All rows at once, and without the import time of scipy.optimize.
    """
    wrong = np.any(np.diff(rows, axis=-1) > 0, axis=-1)
    if not np.any(wrong):
        return rows
    out = rows.copy()
    out[wrong] = _min_max(rows[wrong])
    return out


def _min_max(rows: FloatArray) -> FloatArray:
    n, K = rows.shape
    sums = np.concatenate([np.zeros((n, 1)), np.cumsum(rows, axis=1)], axis=1)
    first, last = np.meshgrid(np.arange(K), np.arange(K), indexing="ij")
    length = np.where(last >= first, last - first + 1, 1)
    mean = np.where(last >= first, (sums[:, None, 1:] - sums[:, :-1, None]) / length, -np.inf)
    best_end = np.maximum.accumulate(mean[:, :, ::-1], axis=2)[:, :, ::-1]  # [n, s, r]: max over t >= r
    best_end = np.where(last >= first, best_end, np.inf)
    fitted: FloatArray = np.maximum(best_end.min(axis=1), 0.0)
    return fitted
