"""The trees of one node more or less than a tree: better ones among them may stand in no list.

A list holds the best trees under one draft's starts. Where acceptance depends on the starts, a tree that looks worse
there may start its own drafts at better places, most often one that differs in little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from treeopt.acceptance.model import PathModel, path_probabilities
from treeopt.acceptance.traffic import Traffic
from treeopt.cost.step_cost import StepCost
from treeopt.solve.bound import Bounded
from treeopt.solve.candidates import Candidates
from treeopt.solve.price import widths_of
from treeopt.solve.prices import price_candidates
from treeopt.solve.problem import Limits, Point, Problem
from treeopt.solve.rivals import RivalList, lengths_under
from treeopt.tree import DraftTree, RankPath


def list_neighbours(
    problem: Problem, points: Sequence[Point], traffic: Traffic, tree: DraftTree, cost: StepCost
) -> RivalList:
    """A tree and its neighbours within the family and the caps, with E under the tree's own starts.

    One leaf less, each; one node more, at each node its likeliest guess that is not there.
    """
    model = traffic.model_under(tree)
    trees = [tree, *(near for near in _neighbours(tree, model, problem.caps) if problem.family.refusal(near) is None)]
    paths = {path for near in trees for path in near.paths}
    f = _f_of(model, DraftTree(tuple(paths)))
    levels = max(model.depth, max(near.depth for near in trees))
    candidates = Candidates(
        nodes=np.array([len(near) for near in trees], dtype=np.int64),
        depth=np.array([near.depth for near in trees], dtype=np.int64),
        widths=np.stack([widths_of(near, levels) for near in trees]),
        tokens=np.array([sum(f[path] for path in near.nodes) for near in trees]),
        makers=tuple(_itself(near) for near in trees),
    )
    prices = price_candidates(problem, points, candidates, cost, lengths_under(model))
    return RivalList(bounded=Bounded(prices, np.zeros(len(points))))


def _neighbours(tree: DraftTree, model: PathModel, caps: Limits) -> Iterator[DraftTree]:
    parents = {path[:-1] for path in tree.paths}
    for leaf in sorted(set(tree.paths) - parents):
        yield DraftTree(tuple(path for path in tree.paths if path != leaf))
    if len(tree) < caps.max_nodes:
        for path in _likeliest(tree, model, caps):
            yield DraftTree((*tree.paths, path))


def _likeliest(tree: DraftTree, model: PathModel, caps: Limits) -> list[RankPath]:
    """Below each node that may have one more child, its likeliest guess that is not there."""
    ranks = range(min(model.ranks, caps.max_ranks or model.ranks))
    depth, most = caps.depth_for(model), caps.max_children or len(ranks)
    known = set(tree.paths)
    may = [path for path, kids in zip(tree.nodes, tree.children, strict=True) if len(path) < depth and len(kids) < most]
    below = [[(*path, rank) for rank in ranks if (*path, rank) not in known] for path in may]
    f = _f_of(model, DraftTree((*tree.paths, *(path for paths in below for path in paths))))
    return [max(paths, key=lambda path: f[path]) for paths in below if paths]


def _f_of(model: PathModel, tree: DraftTree) -> dict[RankPath, float]:
    return dict(zip(tree.nodes, path_probabilities(model, tree).tolist(), strict=True))


def _itself(tree: DraftTree) -> Callable[[], DraftTree]:
    return lambda: tree
