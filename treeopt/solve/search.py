"""The search: price every best tree at every batch size, choose, and say what the alternatives would have cost.

Step time is a staircase in N, so tokens/s has many local maxima: the whole (N, D) grid is priced. For each grid point
the best tree is known exactly (`treeopt.solve.best_trees`), so for costs that do not depend on the widths per level the
maximum over the grid is the optimum over all trees. Where they do, the answer carries an upper bound
(`treeopt.solve.bound`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from treeopt.acceptance.model import PathModel, expected_tokens, path_probabilities
from treeopt.cost.step_cost import StepCost
from treeopt.solve.buckets import Sharing
from treeopt.solve.problem import Problem
from treeopt.solve.result import Choice, Priced
from treeopt.solve.scores import Space
from treeopt.tree import DraftTree


def search(question: Problem, ranks: PathModel, cost: StepCost) -> list[Choice]:
    """The best tree for every bucket of batch sizes.

    Exact for costs without widths; otherwise, and under a limit on the 99th percentile of the time per token,
    `Choice.gap` bounds what a better tree could gain.
    """
    return Space(question, ranks, cost).choices()


def search_with_smaller(
    question: Problem, ranks: PathModel, cost: StepCost, *, loss: float, most: int
) -> tuple[Choice, list[Choice]]:
    """One tree for all batch sizes, and the smaller ones that lose at most `loss` at the largest batch, smallest first.

    Of each size only the best is listed, and of more than `most` sizes evenly spaced ones.
    """
    space = Space(replace(question, sharing=Sharing(max_trees=1)), ranks, cost)
    return space.choices()[0], space.smaller(loss, most)


def price_tree(tree: DraftTree, ranks: PathModel, cost: StepCost, *, batch: int, context: int) -> Priced:
    """E, step time and tokens/s of any tree, for comparisons."""
    widths = tree.expanded_widths if tree.depth else np.zeros(1, dtype=np.int64)
    time_s = float(cost.step_time_s(batch, len(tree), tree.depth, widths, context))
    tokens = expected_tokens(path_probabilities(ranks, tree))
    return Priced(
        nodes=len(tree),
        depth=tree.depth,
        expected_tokens=tokens,
        step_time_s=time_s,
        tokens_per_s=batch * tokens / time_s,
    )
