"""SGLang's encoding of a draft tree: flat candidate indices, and for each level which candidates were expanded.

With k guesses per node (`--speculative-eagle-topk`) the drafter lists k candidates at depth 1 and k x k at every
deeper level, k for each of the k nodes that it expanded ("beams"). Candidates are numbered through: rank r at depth 1
has index r, rank r below beam b at depth d >= 2 has k + (d - 2) k^2 + b k + r. Two integer lists say the rest:
`parent_list` is -1, the k indices of depth 1, and the k beams of each level above the deepest; `selected` are the
indices of the N - 1 verified candidates, rising. The dynamic tree fills both from the drafter's confidence; any static
tree whose ranks are below k and that expands at most k nodes per level can be written the same way.

Source: sglang 0.5.23, `srt/speculative/spec_utils.py` (select_top_k_tokens), `srt/speculative/eagle_utils.py`
(organize_draft_results), `kernels/ops/speculative/spec_tree.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from treeopt.arrays import IntArray
from treeopt.draft_family import pool_size
from treeopt.errors import InputError
from treeopt.tree import DraftTree, RankPath


@dataclass(frozen=True, kw_only=True)
class FlatTree:
    """A static tree as SGLang's drafting loop would have left it.

    Args:
        topk: k, guesses per expanded node.
        steps: drafter passes; at least the tree's depth.
        tree: the tree; its node i is node i of SGLang's verification too.
        beams: `[steps - 1, k]` row i says which of the k x k candidates of depth i + 2 are expanded next (slot k +
            rank); the last row is drafted by no pass and only completes the table.
        parent_list: `[1 + k (steps - 1)]` index of each beam, -1 first; empty for one step.
        selected: `[N - 1]` index of each verified candidate, rising.
    """

    topk: int
    steps: int
    tree: DraftTree
    beams: IntArray
    parent_list: IntArray
    selected: IntArray


def encode(tree: DraftTree, *, topk: int, steps: int | None = None) -> FlatTree:
    """The tree in SGLang's encoding, for `steps` drafter passes (default: as many as it is deep).

    Raises:
        InputError: the tree is deeper than the steps, has a rank of k or more, expands more than k nodes of a level,
            or has nothing to verify.
    """
    steps = max(tree.depth, 1) if steps is None else steps
    _check(tree, topk, steps)
    beams = np.zeros((steps - 1, topk), dtype=np.int64)
    slot_of: dict[RankPath, int] = {(rank,): rank for rank in range(topk)}
    index_of, parents = dict(slot_of), {path[:-1] for path in tree.paths}
    for depth in range(2, steps + 1):
        own = {p: slot_of[p[:-1]] * topk + p[-1] for p in tree.paths if len(p) == depth}
        base = topk + (depth - 2) * topk**2
        index_of |= {path: base + candidate for path, candidate in own.items()}
        expanded = [path for path in own if path in parents]
        slot_of = {path: slot for slot, path in enumerate(expanded)}
        beams[depth - 2] = _filled([own[path] for path in expanded], topk)
    starts = topk + np.arange(steps - 1) * topk**2
    first = np.arange(-1, topk) if steps > 1 else np.zeros(0)
    return FlatTree(
        topk=topk,
        steps=steps,
        tree=tree,
        beams=beams,
        parent_list=np.concatenate([first, (beams + starts[:, None])[:-1].ravel()]).astype(np.int64),
        selected=np.array([index_of[path] for path in tree.paths], dtype=np.int64),
    )


def decode(parent_list: Sequence[int], selected: Sequence[int], *, topk: int) -> DraftTree:
    """The tree that SGLang's lists describe; the inverse of `encode`, and the way to read a dynamic tree.

    Raises:
        TreeError: a candidate is selected twice, or without the one that it hangs on.
        InputError: an index lies outside the lists.
    """
    return DraftTree(tuple(_path(int(index), parent_list, topk) for index in selected))


def filled_up(tree: DraftTree, nodes: int, *, topk: int, steps: int) -> DraftTree:
    """The tree with the likeliest-looking guesses added until it has N nodes, within SGLang's limits.

    SGLang verifies the same N tokens at every batch size, so a smaller tree would verify padding; a further guess
    costs the same and may be right. Guesses of small rank near the root come first.

    Raises:
        InputError: the pool has fewer candidates than that.
    """
    _check(tree, topk, steps)
    if nodes - 1 > pool_size(steps, topk):
        raise InputError(
            f"{nodes} nodes: {steps} steps of {topk} guesses list {pool_size(steps, topk)} candidates",
            hint="verify fewer tokens, or draft more steps or guesses",
        )
    paths = set(tree.paths)
    expanded = [{p[:-1] for p in paths if len(p) == depth} for depth in range(1, steps + 1)]
    parents = [(), *(path for path in paths if len(path) < steps)]
    heap = [_priority(path, rank) for path in parents for rank in range(topk)]
    heapq.heapify(heap)
    while heap and len(paths) < nodes - 1:
        _, depth, path = heapq.heappop(heap)
        parents_here = expanded[depth - 1]
        if path in paths or (path[:-1] not in parents_here and len(parents_here) >= topk):
            continue
        paths.add(path)
        parents_here.add(path[:-1])
        if depth < steps:
            for rank in range(topk):
                heapq.heappush(heap, _priority(path, rank))
    return DraftTree(tuple(paths))


def _priority(parent: RankPath, rank: int) -> tuple[int, int, RankPath]:
    path = (*parent, rank)
    return sum(path) + len(path), len(path), path


def _check(tree: DraftTree, topk: int, steps: int) -> None:
    if topk < 1 or steps < 1:
        raise InputError(f"{steps} steps of {topk} guesses", hint="give at least one step and one guess")
    if len(tree) == 1:
        raise InputError("the tree has nothing to verify", hint="plain decoding needs no encoding")
    if tree.depth > steps:
        raise InputError(f"the tree is {tree.depth} tokens deep, the drafter makes {steps} steps", hint="draft deeper")
    if (rank := int(tree.ranks.max())) >= topk:
        raise InputError(
            f"the tree has rank {rank}, the drafter lists {topk} guesses per node",
            hint=f"--speculative-eagle-topk must be {rank + 1} at least",
        )
    if (width := int(tree.expanded_widths.max())) > topk:
        raise InputError(
            f"the tree expands {width} nodes of a level, SGLang expands {topk}",
            hint=f"--speculative-eagle-topk must be {width} at least",
        )


def _filled(used: list[int], topk: int) -> list[int]:
    """k different candidates, the used ones first: SGLang always expands k."""
    others = (candidate for candidate in range(topk**2) if candidate not in used)
    return [*used, *islice(others, topk - len(used))]


def _path(index: int, parent_list: Sequence[int], topk: int) -> RankPath:
    path: RankPath = ()
    while True:
        group, rank = divmod(index, topk)
        path = (rank, *path)
        if group == 0:
            return path
        if index < 0 or group >= len(parent_list) or int(parent_list[group]) >= index:
            raise InputError(f"index {index} has no parent in the list", hint="give both lists of one request")
        index = int(parent_list[group])
