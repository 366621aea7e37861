"""The ways that are compared at a batch size: plain decoding, the best chain, the plan's tree, what is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from treeopt.acceptance.model import PathModel
from treeopt.plan.plan import Plan
from treeopt.planner.compare import Rival
from treeopt.tree import DraftTree

PLAN: Final = "plan"
CHAIN: Final = "best chain"
PLAIN: Final = "plain"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A tree under all the names that it goes by: the plan's tree may be the best chain, or plain decoding."""

    names: tuple[str, ...]
    tree: DraftTree

    @property
    def name(self) -> str:
        """The names together."""
        return ", ".join(self.names)


def ways_for(plan: Plan, batch: int, context: int, rivals: Sequence[Rival], ranks: PathModel) -> tuple[Way, ...]:
    """Each different tree once, plain decoding first.

    Raises:
        InputError: the plan or a rival has no such batch size.
    """
    bucket = plan.bucket_for(batch, context)
    named = [
        (PLAIN, DraftTree(())),
        (CHAIN, DraftTree.chain(bucket.best_chain.depth)),
        (PLAN, bucket.tree),
        *((rival.name, rival.tree_for(batch, context, ranks)) for rival in rivals),
    ]
    trees = dict.fromkeys(tree for _, tree in named)
    return tuple(Way(names=tuple(name for name, own in named if own == tree), tree=tree) for tree in trees)
