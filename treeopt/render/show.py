"""A tree or a plan as `treeopt show` draws it."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.plan.plan import Plan
from treeopt.planner.show import ShownTree
from treeopt.planner.wording import words_in
from treeopt.render.bucket_table import alternatives, bucket_table, ends_line
from treeopt.render.drawing import draw
from treeopt.render.legend import legend
from treeopt.render.search import plan_heading
from treeopt.render.text import plain_table
from treeopt.tree import DraftTree


def listing(plan: Plan, width: int) -> RenderableType:
    """A plan of several buckets, a line for each."""
    return Group(plan_heading(plan), Text(), bucket_table(plan, width), *ends_line(plan), legend(words_in(plan)))


def report(shown: ShownTree, width: int) -> RenderableType:
    """A tree drawn and node by node, its mask where that is asked for, and what a plan says of it."""
    tree, parts = shown.tree, list[RenderableType]()
    if len(tree) == 1:
        parts.append(Text("do not speculate: the root alone is plain decoding"))
    else:
        gaps = ", with rank gaps (some engines cannot draft it)" if tree.has_rank_gaps else ""
        heading = Text(f"{shown.words.shape(len(tree), tree.depth)}{gaps}")
        parts += [heading, Text(), draw(tree, shown.path_probabilities), Text()]
    parts.append(_nodes(shown))
    if shown.with_mask:
        parts += [Text(), mask_picture(tree)]
    if shown.bucket is not None:
        parts += [
            Text(),
            alternatives(shown.bucket, shown.words),
            legend(shown.words),
            Text(),
            Text(shown.bucket.reason),
        ]
    return Group(*parts)


def _nodes(shown: ShownTree) -> Table:
    """Every node with its parent, position and what it attends to besides the prefix: the mask row by row."""
    table = plain_table("node", "path", "parent", "position", "f", "attends to")
    tree, f, positions = shown.tree, shown.path_probabilities, shown.positions
    for node, path in enumerate(tree.nodes):
        table.add_row(
            str(node),
            ",".join(map(str, path)) or "root",
            str(tree.parents[node]) if node else "",
            str(positions[node]),
            "" if f is None else f"{f[node]:.4f}",
            " ".join(map(str, np.flatnonzero(tree.ancestor_mask[node]))),
        )
    table.columns[1].justify = table.columns[5].justify = "left"
    return table


def mask_picture(tree: DraftTree) -> Text:
    """The ancestor mask `[N, N]`, one character a cell."""
    return Text("\n".join("".join("■" if cell else "·" for cell in row) for row in tree.ancestor_mask))
