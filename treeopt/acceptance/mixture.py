"""Several kinds of traffic behind one plan: f of the mixture, and each kind's own f to judge the plan by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treeopt.acceptance.model import PathModel
from treeopt.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Mixture:
    """f(v) = sum of w_c f_c(v) over the categories c, w_c the share of drafts that are of category c.

    The mixture of two product-form laws is not of product form: a path that was accepted so far tells which category
    the request is of, P(c | v) = w_c f_c(v) / f(v). Paths beyond a category's evidence count as never accepted there.
    """

    models: tuple[PathModel, ...]
    weights: tuple[float, ...]

    product_form = False

    @property
    def depth(self) -> int:
        """Of the deepest category."""
        return max(model.depth for model in self.models)

    @property
    def ranks(self) -> int:
        """Of the category with the most ranks."""
        return max(model.ranks for model in self.models)

    def conditional(self, paths: IntArray) -> FloatArray:
        """Each category's row, weighted by how likely the path says that category is."""
        joint = np.zeros((len(paths), self.ranks))
        reached = np.zeros(len(paths))
        for model, weight in zip(self.models, self.weights, strict=True):
            f = weight * _path_f(model, paths)
            reached += f
            if paths.shape[1] < model.depth:
                joint[:, : model.ranks] += f[:, None] * model.conditional(np.minimum(paths, model.ranks - 1))
        return np.divide(joint, reached[:, None], out=np.zeros_like(joint), where=reached[:, None] > 0.0)


def _path_f(model: PathModel, paths: IntArray) -> FloatArray:
    """`[n, d]` paths to `[n]` f of each; 0 beyond the model's depth or ranks."""
    n, depth = paths.shape
    f = np.ones(n)
    if depth > model.depth:
        return np.zeros(n)
    inside = np.minimum(paths, model.ranks - 1)
    for d in range(depth):
        rows = model.conditional(inside[:, :d])
        f = np.where(paths[:, d] < model.ranks, f * rows[np.arange(n), inside[:, d]], 0.0)
    return f
