"""The candidates of a problem by the family of its drafts, and the bound on what they leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.dynamic_tree import (
    DynamicTreeCaps,
    ModelValues,
    ValuedModel,
    dynamic_tree_shape,
    dynamic_tree_widths,
)
from treeopt.acceptance.model import PathModel, expected_tokens, path_probabilities
from treeopt.arrays import IntArray
from treeopt.draft_family import (
    Chains,
    Draft,
    DraftFamily,
    DynamicTree,
    DynamicTrees,
    MeasuredDrafts,
    StaticTrees,
    UniformTrees,
    has_leading_parents,
)
from treeopt.errors import SearchError
from treeopt.solve.best_trees import BestTrees, allowed_ranks, best_trees
from treeopt.solve.candidates import (
    WIDTHS,
    Candidates,
    FamilyCandidates,
    Sizes,
    chain_candidates,
    concatenate,
    most_chain_tokens,
    tree_candidates,
)
from treeopt.solve.children_cap import capped_trees
from treeopt.solve.options import depth_of, nodes_of
from treeopt.solve.price import widths_of
from treeopt.solve.problem import Limits
from treeopt.solve.uniform_trees import uniform_levels
from treeopt.tree import DraftTree

_PLAIN_AND_NONE: Final = Limits(max_nodes=1)
# Few parents per depth rarely stand in the wrong order.
_NARROW: Final = WIDTHS[:6]


def list_candidates(family: DraftFamily, ranks: PathModel, limits: Limits) -> FamilyCandidates:
    """Plain decoding, and all drafts of a family that may be the best one.

    Raises:
        SearchError: limits that leave no draft of this family.
    """
    depth = max(ranks.depth, 1)
    if isinstance(family, StaticTrees):
        return _trees(family, ranks, limits, depth)
    if isinstance(family, Chains):
        return FamilyCandidates(_chains(ranks, limits, depth))
    plain = _chains(ranks, _PLAIN_AND_NONE, depth)
    if isinstance(family, MeasuredDrafts):
        return FamilyCandidates(concatenate([plain, _measured(family, ranks, limits, depth)]))
    found = (
        _uniform(family, ranks, limits, depth) if isinstance(family, UniformTrees) else _dynamic(family, ranks, limits)
    )
    return FamilyCandidates(concatenate([plain, found]))


def tree_of(draft: Draft, ranks: PathModel) -> DraftTree:
    """A draft's tree; a dynamic one's is that which it builds on average confidence."""
    if isinstance(draft, DraftTree):
        return draft
    return dynamic_tree_shape(ranks.confidence if isinstance(ranks, ValuedModel) else ranks, draft)


def _trees(family: StaticTrees, ranks: PathModel, limits: Limits, depth: int) -> FamilyCandidates:
    cap = family.max_expanded
    if limits.max_children is not None and not family.rank_gaps:
        # Children without gaps are the best ranks: so many of them is a cap on the ranks.
        limits = replace(limits, max_ranks=min(limits.max_children, limits.max_ranks or ranks.ranks), max_children=None)
    trees_by_depth = _best_trees(ranks, limits, cap)
    trees = [tree_candidates(trees_by_depth, depth)]
    chains = _chains(ranks, limits, depth)
    most_of_chains = chains.tokens
    if family.rank_gaps and not ranks.product_form:  # else no chain beats that of the top guesses
        most_of_chains = most_chain_tokens(ranks, limits, int(chains.depth.max()))
    most = {(d + 1, d): float(E) for d, E in enumerate(most_of_chains)}
    if family.min_depth > 1:
        two_deep = _two_deep(ranks, limits, depth, gaps=family.rank_gaps)
        trees.append(two_deep)
        most |= {(int(n), 2): float(E) for n, E in zip(two_deep.nodes, two_deep.tokens, strict=True)}
    candidates = concatenate([chains, *trees])
    free = trees_by_depth if cap is None or ranks.product_form else _best_trees(ranks, limits, None)
    sizes = Sizes.of(free, depth=limits.depth_for(ranks), levels=depth, most=most)
    if family.leading_parents:
        return FamilyCandidates(_leading(candidates, ranks, limits, depth), sizes)

    def by_width(within: Limits) -> Sequence[Sequence[BestTrees]]:
        widths = [w if cap is None else min(w, cap) for w in WIDTHS]
        sized = replace(limits, max_nodes=within.max_nodes, max_depth=within.max_depth)
        return [best_trees(ranks, sized, max_width=w) for w in widths]

    return FamilyCandidates(candidates, sizes, by_width if ranks.product_form else None)


def _best_trees(ranks: PathModel, limits: Limits, max_expanded: int | None) -> Sequence[BestTrees]:
    binds = limits.max_children is not None and limits.max_children < min(ranks.ranks, limits.max_ranks or ranks.ranks)
    if binds and not ranks.product_form and max_expanded is None:
        return capped_trees(ranks, limits)
    return best_trees(ranks, limits, max_width=max_expanded)


def _chains(ranks: PathModel, limits: Limits, depth: int) -> Candidates:
    longest = min(limits.max_nodes, limits.depth_for(ranks) + 1)
    return chain_candidates(ranks, Limits(max_nodes=longest), depth)


def _two_deep(ranks: PathModel, limits: Limits, depth: int, *, gaps: bool) -> Candidates:
    """The best trees of depth 2 for sizes at which the best tree may have depth 1.

    There the likeliest nodes all have depth 1, so one of depth 2 takes the place of the unlikeliest: the best child
    of some node, whose parent may have to come in with it.
    """
    if limits.depth_for(ranks) < 2:
        return tree_candidates([], depth)
    rows, allowed = allowed_ranks(ranks.conditional(np.zeros((1, 0), dtype=np.int64)), limits)
    first, count = rows[0], int(np.count_nonzero(allowed[0]))
    rows, allowed = allowed_ranks(ranks.conditional(np.arange(len(first))[:, None]), limits)
    rows = np.where(allowed, rows, 0.0)
    below = first * rows.max(axis=1)
    found = [
        _Small(nodes, r, int(rows[r].argmax()), float(first[_beside(r, nodes)].sum() + first[r] + below[r]))
        for nodes in range(3, min(limits.max_nodes, count + 2) + 1)
        for r in range(count if gaps else min(nodes - 2, count))
    ]
    best = {f.nodes: f for f in sorted(found, key=lambda f: f.gain)}
    return _listed([_small_tree(f) for f in best.values()], [1.0 + f.gain for f in best.values()], depth)


class _Small(NamedTuple):
    """A tree of `nodes` nodes: `(parent, child)`, its parent, and the likeliest others of depth 1."""

    nodes: int
    parent: int
    child: int
    gain: float


def _beside(parent: int, nodes: int) -> list[int]:
    return [r for r in range(nodes - 2) if r != parent][: nodes - 3]


def _small_tree(small: _Small) -> DraftTree:
    first = [small.parent, *_beside(small.parent, small.nodes)]
    return DraftTree((*((r,) for r in first), (small.parent, small.child)))


def _listed(trees: Sequence[DraftTree], tokens: Sequence[float], depth: int) -> Candidates:
    """StaticTrees one by one as candidates."""
    widths = np.zeros((len(trees), depth), dtype=np.int64)
    for row, tree in zip(widths, trees, strict=True):
        row[: tree.depth] = tree.expanded_widths
    return Candidates(
        nodes=np.array([len(t) for t in trees], dtype=np.int64),
        depth=np.array([t.depth for t in trees], dtype=np.int64),
        widths=widths,
        tokens=np.array(tokens, dtype=np.float64),
        makers=tuple(_constant(tree) for tree in trees),
    )


def _leading(candidates: Candidates, ranks: PathModel, limits: Limits, depth: int) -> Candidates:
    """The candidates with leading parents; where they take one away, narrower trees of its size stand in."""
    kept = _with_leading_parents(candidates)
    missing = np.delete(np.arange(len(candidates.nodes)), kept)
    if not len(missing):
        return candidates
    narrower = [tree_candidates(best_trees(ranks, limits, max_width=w), depth) for w in _NARROW]
    stand_ins = concatenate(narrower)
    stand_ins = stand_ins.only(np.flatnonzero(np.isin(stand_ins.nodes, candidates.nodes[missing])))
    return concatenate([candidates.only(kept), stand_ins.only(_with_leading_parents(stand_ins))])


def _with_leading_parents(candidates: Candidates) -> IntArray:
    drafts = [candidates.draft(i) for i in range(len(candidates.nodes))]
    kept = [i for i, draft in enumerate(drafts) if isinstance(draft, DraftTree) and has_leading_parents(draft)]
    return np.array(kept, dtype=np.int64)


def _uniform(family: UniformTrees, ranks: PathModel, limits: Limits, depth: int) -> Candidates:
    blocks = list(_uniform_blocks(family, ranks, limits, depth))
    return concatenate(blocks) if blocks else _listed([], [], depth)


def _uniform_blocks(family: UniformTrees, ranks: PathModel, limits: Limits, depth: int) -> Iterator[Candidates]:
    for level in uniform_levels(ranks, limits, equal_widths=family.equal_widths):
        n, d = level.widths.shape
        widths = np.zeros((n, depth), dtype=np.int64)
        widths[:, :d] = np.cumprod(
            np.concatenate([np.ones((n, 1), dtype=np.int64), level.widths[:, :-1]], axis=1), axis=1
        )
        yield Candidates(
            nodes=level.nodes,
            depth=np.full(n, d, dtype=np.int64),
            widths=widths,
            tokens=level.expected_tokens,
            makers=tuple(_uniform_maker(tuple(w)) for w in level.widths.tolist()),
        )


def _dynamic(family: DynamicTrees, ranks: PathModel, limits: Limits) -> Candidates:
    """All dynamic trees that the engine accepts, in the order in which it is asked for them."""
    wanted = dynamic_tree_caps(family, ranks, limits)
    values = ranks.values if isinstance(ranks, ValuedModel) else ModelValues.of(ranks, wanted)
    reach = values.limits
    found = list(
        family.rule.trees(
            num_steps=min(wanted.num_steps, reach.num_steps),
            topk=min(wanted.topk, reach.topk),
            num_draft_tokens=min(wanted.num_draft_tokens, reach.num_draft_tokens),
        )
    )
    if not found:
        raise SearchError(
            f"{family.rule.engine} accepts no dynamic tree of up to {wanted.num_steps} steps, topk {wanted.topk} and "
            f"{wanted.num_draft_tokens} nodes",
            hint="allow more nodes",
        )
    tokens_of = {(steps, topk): values.tokens(steps, topk) for steps, topk in {(t[0], t[1]) for t in found}}
    steps, topk, nodes = np.array(found, dtype=np.int64).T
    tokens = np.array([tokens_of[t.num_steps, t.topk][t.num_draft_tokens] for t in found])
    return Candidates(
        nodes=nodes,
        depth=steps,
        widths=dynamic_tree_widths(steps, topk, levels=max(ranks.depth, 1)),
        tokens=tokens,
        makers=tuple(_constant(_as_chain(t)) for t in found),
    )


def _measured(family: MeasuredDrafts, ranks: PathModel, limits: Limits, depth: int) -> Candidates:
    """The drafts of a table within the caps, as the drafter's mean confidence shapes them."""
    drafts = [draft for draft in family.drafts if nodes_of(draft) <= limits.max_nodes]
    trees = [tree_of(draft, ranks) for draft in drafts]
    return Candidates(
        nodes=np.array([nodes_of(draft) for draft in drafts], dtype=np.int64),
        depth=np.array([depth_of(draft) for draft in drafts], dtype=np.int64),
        widths=np.array([widths_of(draft, depth) for draft in drafts], dtype=np.int64).reshape(-1, depth),
        tokens=np.array([expected_tokens(path_probabilities(ranks, tree)) for tree in trees]),
        makers=tuple(_constant(draft) for draft in drafts),
    )


def dynamic_tree_caps(family: DynamicTrees, ranks: PathModel, limits: Limits) -> DynamicTreeCaps:
    """The dynamic trees that the problem's caps and the evidence leave.

    Raises:
        SearchError: none.
    """
    caps = (family.max_topk, ranks.ranks, limits.max_ranks, limits.max_children)
    steps, topk = limits.depth_for(ranks), min(c for c in caps if c is not None)
    return DynamicTreeCaps(num_steps=steps, topk=topk, num_draft_tokens=limits.max_nodes)


def _as_chain(tree: DynamicTree) -> Draft:
    return DraftTree.chain(tree.num_steps) if tree.topk == 1 else tree


def _constant(draft: Draft) -> Callable[[], Draft]:
    return lambda: draft


def _uniform_maker(widths: tuple[int, ...]) -> Callable[[], Draft]:
    return lambda: DraftTree.from_widths(widths)
