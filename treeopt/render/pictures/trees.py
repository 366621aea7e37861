"""A draft tree, its nodes shaded by how often the whole path to them is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.render.pictures.style import Picture, ink, new_figure
from treeopt.tree import DraftTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW, _TIGHT_ROW = 15, 12  # pixels between leaves: of few, of many
_MANY = 20
_COLUMN = 64
_FONT = 9
_ROOM = 38  # pixels that a node's f takes


def tree_picture(tree: DraftTree, f: FloatArray | None, *, name: str = "tree", title: str = "") -> Picture:
    """The tree from left to right, likelier guesses above; each node's f stands beside it where there is room."""
    rows = _rows(tree)
    leaves = int(rows.max()) + 1
    row = _ROW if leaves <= _MANY else _TIGHT_ROW
    column = min(_COLUMN, 400 / (tree.depth + 0.6))
    figure = new_figure(leaves * row + 26, width=max(round((tree.depth + 0.6) * column) + 14, 180))
    width, height = figure.get_size_inches() * 72
    axes = figure.add_axes((0, 0, 1, 1), facecolor="none")
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    x, y = np.array(10.0 + tree.depths * column), np.array(18.0 + rows * row)
    _edges(axes, tree, x, y, bend=0.35 * column)
    shade = np.ones(len(tree)) if f is None else np.clip(f, 0.0, 1.0)
    axes.scatter(x, y, s=46, color=ink("page"), zorder=2, linewidths=0)
    # What is seldom accepted is pale.
    axes.scatter(x, y, s=46, c=[ink("plan")] * len(tree), alpha=shade.tolist(), zorder=3, linewidths=0)
    axes.scatter(x, y, s=46, facecolors="none", edgecolors=ink("plan"), linewidths=0.9, zorder=4)
    if f is not None and column >= _ROOM:
        inner = set(tree.parents[1:].tolist())
        for node in range(1, len(tree)):
            up = 2.5 if node in inner else -3.2  # beside a leaf, above the line to a child
            axes.text(x[node] + 7, y[node] - up, _percent(float(f[node])), fontsize=_FONT, color=ink("muted"))
    return Picture(name, title or f"A tree of {len(tree)} nodes, depth {tree.depth}", _in_words(tree, f), figure)


def _edges(axes: Axes, tree: DraftTree, x: FloatArray, y: FloatArray, *, bend: float) -> None:
    from matplotlib.collections import LineCollection

    parents = tree.parents[1:]
    corner = np.stack([x[parents] + bend, y[1:]], axis=1)
    lines = np.stack([np.stack([x[parents], y[parents]], axis=1), corner, np.stack([x[1:], y[1:]], axis=1)], axis=1)
    axes.add_collection(LineCollection(list(lines), colors=ink("line"), linewidths=1.2, zorder=1))


def _rows(tree: DraftTree) -> FloatArray:
    """`[N]` the row of each node: leaves one below the other, a parent beside its likeliest child."""
    children: list[list[int]] = [[] for _ in range(len(tree))]
    for node in range(1, len(tree)):
        children[int(tree.parents[node])].append(node)
    rows, leaves, waiting = np.zeros(len(tree)), 0, [0]
    while waiting:
        node = waiting.pop()
        rows[node] = leaves
        if children[node]:
            waiting += reversed(children[node])
        else:
            leaves += 1
    return rows


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "<1%"


def _in_words(tree: DraftTree, f: FloatArray | None) -> str:
    paths = (",".join(map(str, path)) for path in tree.paths)
    if f is None:
        return f"Rank paths: {'; '.join(paths)}."
    return "Accepted to: " + "; ".join(f"{p} {_percent(float(v))}" for p, v in zip(paths, f[1:], strict=True)) + "."
