"""What `treeopt show` draws: a plan's buckets, or one tree with its positions and mask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.model import path_probabilities
from treeopt.arrays import FloatArray, IntArray
from treeopt.draft_words import NODES, DraftWords
from treeopt.files.documents import read_document
from treeopt.files.shipped import locate
from treeopt.plan.plan import Plan
from treeopt.plan.reading import is_plan, parse_plan, parse_tree
from treeopt.planner.wording import words_in
from treeopt.solve.bucket import Bucket
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownTree:
    """One tree behind a prefix, and the bucket of a plan that it is of.

    Args:
        path_probabilities: `[N]` f(v), where something tells it.
        prefix_len: L, the committed tokens before the root.
        words: how the plan's engine counts it.
    """

    FORMAT: ClassVar = "treeopt.show/1"
    WRITTEN: ClassVar = (
        *("nodes", "depth", "has_rank_gaps", "paths", "parents"),
        *("positions", "path_probabilities", "mask"),
    )

    tree: DraftTree
    path_probabilities: FloatArray | None
    prefix_len: int
    bucket: Bucket | None
    with_mask: bool
    words: DraftWords = NODES

    @property
    def nodes(self) -> int:
        """N, the root counted."""
        return len(self.tree)

    @property
    def depth(self) -> int:
        """D, the longest path."""
        return self.tree.depth

    @property
    def has_rank_gaps(self) -> bool:
        """Whether a guess is drafted without a likelier one beside it: some engines cannot."""
        return self.tree.has_rank_gaps

    @property
    def paths(self) -> DraftTree:
        """The rank paths, the root left out."""
        return self.tree

    @property
    def parents(self) -> IntArray:
        """`[N]` -1 for the root."""
        return self.tree.parents

    @property
    def positions(self) -> IntArray:
        """`[N]` in the text."""
        return self.tree.positions(self.prefix_len)

    @property
    def mask(self) -> IntArray:
        """`[N, N]` 1 where the row attends to the column."""
        return self.tree.ancestor_mask.astype(np.int64)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader must know of the drawing."""
        if self.bucket is None or self.bucket.dynamic is None:
            return ()
        return (
            f"{self.words.draft(self.bucket.draft)} is built anew in every step; drawn is the one that is built on "
            "average confidence",
        )


def shown_of(
    file: Path, *, batch: int | None, context: int | None, ranks: str | None, with_mask: bool
) -> Plan | ShownTree:
    """What a file holds: a plan of several buckets where no batch size chooses one, else one tree.

    Raises:
        InputError: the file or the rank profile cannot be read, or the plan has no such bucket.
    """
    f: FloatArray | None
    words = NODES
    document = read_document(file, what="plan or tree")
    if is_plan(document):
        plan = parse_plan(document)
        if batch is None and len(plan.buckets) > 1:
            return plan
        bucket = plan.buckets[0] if batch is None else plan.bucket_for(batch, context)
        words = words_in(plan)
        tree, f, length = bucket.tree, bucket.path_probabilities, bucket.context.max
    else:
        bucket, tree, length = None, parse_tree(document), 0
        f = None if ranks is None else path_probabilities(load_profile(locate("ranks", ranks).path).model(), tree)
    return ShownTree(
        tree=tree,
        path_probabilities=f,
        prefix_len=length if context is None else context,
        bucket=bucket,
        with_mask=with_mask,
        words=words,
    )
