"""How an answer counts and names drafts: in nodes, or in the words of the engine that will load them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from treeopt.draft_family import (
    Chains,
    Draft,
    DraftFamily,
    DynamicTree,
    DynamicTrees,
    as_dynamic_tree,
    chain_length,
    in_words,
)
from treeopt.tree import DraftTree

_TREE_HEAD: Final = "draft tokens"


@dataclass(frozen=True, kw_only=True)
class DraftWords:
    """The count of drafts and what it is called.

    Args:
        head: a table's column of the count.
        of: a size in a sentence.
        uncounted: nodes that the count leaves out: 1 where the root is not counted.
        setting: what the engine calls it, in words: `num_speculative_tokens in vLLM`; empty for no engine.
    """

    head: str
    of: str
    uncounted: int = 0
    setting: str = ""

    def count(self, nodes: int) -> int:
        """What N nodes are in this count: a tree of 9 nodes is K = 8."""
        return nodes - self.uncounted

    def size(self, nodes: int) -> str:
        """The same in words: `9 nodes`, `K = 8`."""
        return self.of.format(self.count(nodes))

    def rival(self, nodes: int) -> str:
        """Another draft of that size: `plain decoding`, `a tree of 9 nodes`, `K = 8`."""
        if nodes == 1:
            return "plain decoding"
        return f"a tree of {self.size(nodes)}" if self.head == NODES.head else self.size(nodes)

    def shape(self, nodes: int, depth: int) -> str:
        """A size with its depth; of a chain's K the depth is no news, so this is for drafts that may be trees."""
        return f"{self.size(nodes)}, depth {depth}"

    def draft(self, draft: Draft) -> str:
        """A draft in a sentence: `a tree of 9 nodes, depth 3`, `K = 3`, `a dynamic tree: steps 3, topk 4, ...`."""
        length = chain_length(draft)
        if length == 0 or (self.head == NODES.head and not isinstance(draft, DynamicTree)):
            return in_words(draft)
        if length is not None:
            return K.size(length + 1)
        if isinstance(draft, DynamicTree):
            return f"a dynamic tree: steps {draft.num_steps}, topk {draft.topk}, {_TREE_HEAD} {self.count(draft[2])}"
        return self.shape(len(draft), draft.depth)

    def cell(self, draft: Draft) -> str:
        """A draft in the column `column`: `9 nodes`, `8`, `3, 4, 16`."""
        dynamic = as_dynamic_tree(draft) if self.head == _TREE_HEAD or isinstance(draft, DynamicTree) else None
        if dynamic is not None:
            return f"{dynamic.num_steps}, {dynamic.topk}, {self.count(dynamic.num_draft_tokens)}"
        assert isinstance(draft, DraftTree)
        return self.size(len(draft)) if self.head == NODES.head else str(self.count(len(draft)))

    @property
    def column(self) -> str:
        """The column of the drafts themselves: what the engine is set to."""
        return {NODES.head: "verify", _TREE_HEAD: f"steps, topk, {_TREE_HEAD}"}.get(self.head, self.head)


NODES: Final = DraftWords(head="nodes", of="{} nodes")
K: Final = DraftWords(head="K", of="K = {}", uncounted=1)
DRAFT_TOKENS: Final = DraftWords(head=_TREE_HEAD, of="{} draft tokens")
# Engines that do not count the root in a dynamic tree.
DRAFTED: Final = DraftWords(head=_TREE_HEAD, of="{} draft tokens", uncounted=1)


def words_for(family: DraftFamily, drafts: Sequence[Draft] = ()) -> DraftWords:
    """The count of what a family's engines are set to, for these drafts of it.

    A chain's K; a dynamic tree's draft tokens, with the root where its engine counts that; else nodes. A dynamic
    family whose drafts are all chains is set to their K.
    """
    chains = bool(drafts) and all(chain_length(draft) is not None for draft in drafts)
    if isinstance(family, Chains) or (isinstance(family, DynamicTrees) and chains):
        return K
    if isinstance(family, DynamicTrees):
        return DRAFT_TOKENS if family.rule.counts_root else DRAFTED
    return NODES
