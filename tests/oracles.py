"""Slow and obvious answers that the tests compare the package with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

Path = tuple[int, ...]


def all_paths(ranks: int, depth: int) -> list[Path]:
    return [path for d in range(1, depth + 1) for path in product(range(ranks), repeat=d)]


def all_trees(ranks: int, depth: int, max_nodes: int, *, max_children: int | None = None) -> Iterator[frozenset[Path]]:
    """Every prefix-closed set of rank paths with at most `max_nodes` nodes, root included (and not listed)."""
    candidates = sorted(all_paths(ranks, depth), key=lambda p: (len(p), p))

    def grow(tree: frozenset[Path], start: int) -> Iterator[frozenset[Path]]:
        yield tree
        if len(tree) + 1 >= max_nodes:
            return
        for i in range(start, len(candidates)):
            path = candidates[i]
            if path[:-1] and path[:-1] not in tree:
                continue
            siblings = sum(1 for p in tree if p[:-1] == path[:-1])
            if max_children is not None and siblings >= max_children:
                continue
            yield from grow(tree | {path}, i + 1)

    yield from grow(frozenset(), 0)


class TableModel:
    """Any f: a row of conditional probabilities per path, as drawn (see `treeopt.acceptance.model.PathModel`)."""

    product_form = False

    def __init__(self, depth: int, ranks: int, row: Callable[[Path], np.ndarray]) -> None:
        self.depth, self.ranks = depth, ranks
        self._rows = {path: row(path) for path in [(), *all_paths(ranks, depth - 1)]}

    def conditional(self, paths: np.ndarray) -> np.ndarray:
        return np.array([self._rows[tuple(p)] for p in paths.tolist()]).reshape(len(paths), self.ranks)

    def f(self, path: Path) -> float:
        return float(np.prod([self._rows[path[:d]][path[d]] for d in range(len(path))]))


def random_path_model(rng: np.random.Generator, depth: int, ranks: int) -> TableModel:
    """f depends on the whole path."""

    def row(_: Path) -> np.ndarray:
        return rng.dirichlet(np.ones(ranks + 1))[:ranks]

    return TableModel(depth, ranks, row)


def random_product_model(rng: np.random.Generator, depth: int, ranks: int) -> TableModel:
    """f is a product of depth-by-rank factors."""
    rates = rng.dirichlet(np.ones(ranks + 1), size=depth)[:, :ranks]
    model = TableModel(depth, ranks, lambda path: rates[len(path)])
    model.product_form = True
    return model
