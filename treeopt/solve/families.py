"""Which drafts a search may choose from: every tree, or what an engine can be told to draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from treeopt.acceptance.dynamic_tree import Triple, TripleRule
from treeopt.tree import DraftTree

Draft = DraftTree | Triple

# No engine's drafter lists more guesses per node of a dynamic tree.
MAX_TOPK: Final = 10


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Static trees of any shape.

    `min_depth` is 0, 1 or 2; plain decoding is no tree in this sense. `max_expanded` caps the nodes of one depth that
    have children. `rank_gaps`: a node may lack a better-ranked sibling. `leading_parents`: in every depth the nodes
    with grandchildren come before those with children only.
    """

    min_depth: int = 0
    max_expanded: int | None = None
    rank_gaps: bool = True
    leading_parents: bool = False


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Chains of top guesses."""


@dataclass(frozen=True, kw_only=True)
class UniformTrees:
    """Trees in which all nodes of a depth have equally many children; with `equal_widths` also those of all depths."""

    equal_widths: bool = False


@dataclass(frozen=True, kw_only=True)
class Triples:
    """Dynamic trees of steps, guesses per node and nodes, within an engine's rule and `max_topk`; chains among them."""

    rule: TripleRule
    max_topk: int = MAX_TOPK


Shape = Trees | Chains | UniformTrees | Triples

ANY_TREE: Final = Trees()


def is_uniform(tree: DraftTree) -> bool:
    """Whether all nodes of a depth have equally many children, ranked from 0."""
    if tree.has_rank_gaps:
        return False
    counts = np.array([len(kids) for kids in tree.children])
    return all(len(set(counts[tree.depths == depth])) == 1 for depth in range(tree.depth + 1))


def has_leading_parents(tree: DraftTree) -> bool:
    """Whether in every depth the nodes with grandchildren come before those with children only."""
    parent = np.array([bool(kids) for kids in tree.children])
    grand = np.array([any(parent[k] for k in kids) for kids in tree.children])
    # Among the parents of a depth, once one has no grandchildren no later one has.
    return all(
        not np.any(np.diff(grand[parent & (tree.depths == depth)].astype(int)) > 0) for depth in range(tree.depth)
    )
