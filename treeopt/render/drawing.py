"""The drawing of a tree."""

from __future__ import annotations

import numpy as np
from rich.text import Text
from rich.tree import Tree

from treeopt.arrays import FloatArray
from treeopt.tree import DraftTree


def draw(tree: DraftTree, f: FloatArray | None, *, limit: int | None = None) -> Tree:
    """The tree, each node with its rank and f; beyond `limit` nodes only the likeliest are drawn."""
    shown = set(range(len(tree)))
    if limit is not None and len(tree) > limit and f is not None:
        shown = set(np.argsort(-f, kind="stable")[:limit].tolist())
    legend = "" if f is None else "  (rank of each guess, and f: how often its whole path is accepted)"
    root = Tree(Text("root", style="bold").append(legend, style="dim not bold"), guide_style="dim")
    branches = {0: root}
    for node in range(1, len(tree)):
        if node in shown:
            label = Text(f"{tree.ranks[node]}", style="bold cyan")
            if f is not None:
                label.append(f"  {f[node]:.3f}", style="default not bold")
            branches[node] = branches[int(tree.parents[node])].add(label)
    if len(shown) < len(tree):
        root.add(Text(f"... and {len(tree) - len(shown)} less likely nodes", style="dim"))
    return root
