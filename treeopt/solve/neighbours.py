"""The trees of one node more or less than a tree: better ones among them may stand in no list.

A list holds the best trees under one draft's starts. Where acceptance depends on the starts, a tree that looks worse
there may start its own drafts at better places, most often one that differs in little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

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

# So many of each kind: the others of a kind are unlikelier, and take a step of as many nodes.
_MOST: Final = 8


def list_neighbours(
    problem: Problem, points: Sequence[Point], traffic: Traffic, tree: DraftTree, cost: StepCost
) -> RivalList:
    """A tree and its neighbours within the family and the caps, with E under the tree's own starts.

    One leaf less, the unlikeliest ones; one node more, the likeliest guess that is not there at each node, and of these
    the likeliest.
    """
    model = traffic.model_under(tree)
    f = _f_with_children(tree, model, problem.caps)
    trees = [tree, *(near for near in _neighbours(tree, f, problem.caps) if problem.family.refusal(near) is None)]
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


def _f_with_children(tree: DraftTree, model: PathModel, caps: Limits) -> dict[RankPath, float]:
    """f of the tree's nodes, and of those that it may have below them."""
    ranks = range(min(model.ranks, caps.max_ranks or model.ranks))
    parents = [path for path in tree.nodes if len(path) < caps.depth_for(model)]
    grown = DraftTree(tuple({*tree.paths, *((*path, rank) for path in parents for rank in ranks)}))
    return dict(zip(grown.nodes, path_probabilities(model, grown).tolist(), strict=True))


def _neighbours(tree: DraftTree, f: dict[RankPath, float], caps: Limits) -> Iterator[DraftTree]:
    leaves = sorted(set(tree.paths) - {path[:-1] for path in tree.paths})
    for leaf in sorted(leaves, key=f.__getitem__)[:_MOST]:
        yield DraftTree(tuple(path for path in tree.paths if path != leaf))
    if len(tree) < caps.max_nodes:
        more = _likeliest_children(tree, f, caps)
        for path in sorted(more, key=f.__getitem__, reverse=True)[:_MOST]:
            yield DraftTree((*tree.paths, path))


def _likeliest_children(tree: DraftTree, f: dict[RankPath, float], caps: Limits) -> list[RankPath]:
    """Below each node that may have one more child, its likeliest guess that is not there."""
    known, best = set(tree.nodes), dict[RankPath, RankPath]()
    children = {path: len(kids) for path, kids in zip(tree.nodes, tree.children, strict=True)}
    for path, value in f.items():
        parent = path[:-1]
        if path in known or (caps.max_children is not None and children[parent] >= caps.max_children):
            continue
        if parent not in best or value > f[best[parent]]:
            best[parent] = path
    return list(best.values())


def _itself(tree: DraftTree) -> Callable[[], DraftTree]:
    return lambda: tree
