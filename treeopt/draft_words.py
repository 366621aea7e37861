"""How an answer counts drafts: in nodes, or in what an engine's setting counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from treeopt.draft_family import Chains, Draft, DraftFamily, DynamicTree, DynamicTrees, chain_length


@dataclass(frozen=True, kw_only=True)
class DraftWords:
    """The count of drafts and what it is called.

    Args:
        head: a table's column.
        of: a size in a sentence.
        uncounted: nodes that the count leaves out: 1 where the root is not counted.
    """

    head: str
    of: str
    uncounted: int = 0

    def count(self, nodes: int) -> int:
        """What N nodes are in this count: a tree of 9 nodes is K = 8."""
        return nodes - self.uncounted

    def size(self, nodes: int) -> str:
        """The same in words: `9 nodes`, `K = 8`."""
        return self.of.format(self.count(nodes))


NODES: Final = DraftWords(head="nodes", of="{} nodes")
K: Final = DraftWords(head="K", of="K = {}", uncounted=1)
DRAFT_TOKENS: Final = DraftWords(head="draft tokens", of="{} draft tokens")


def words_for(family: DraftFamily) -> DraftWords:
    """The count of what a family's engines are set to: a chain's K, a dynamic tree's draft tokens, else nodes."""
    if isinstance(family, Chains):
        return K
    return DRAFT_TOKENS if isinstance(family, DynamicTrees) else NODES


def words_of(drafts: Sequence[Draft]) -> DraftWords:
    """The count of an engine's setting by the drafts that it was given."""
    if any(isinstance(draft, DynamicTree) for draft in drafts):
        return DRAFT_TOKENS
    return K if drafts and all(chain_length(draft) is not None for draft in drafts) else NODES
