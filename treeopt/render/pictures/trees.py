"""A draft tree, its nodes shaded by how often the whole path to them is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.render.pictures.style import Picture, ink, new_figure
from treeopt.tree import DraftTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW, _TIGHT_ROW = 15, 12  # pixels between leaves: of few, of many
_MANY = 20
_COLUMN = 64
_FONT = 9
_NODE = 14.6  # area of a node's circle, in points of half its width
_ROOM = 38  # pixels that a node's f takes


def tree_picture(tree: DraftTree, f: FloatArray | None, *, name: str = "tree", title: str = "") -> Picture:
    """The tree from left to right, likelier guesses above; each node's f stands beside it where there is room."""
    rows = _rows(tree)
    leaves = int(rows.max()) + 1
    row = _ROW if leaves <= _MANY else _TIGHT_ROW
    column = min(_COLUMN, 400 / (tree.depth + 0.6))
    height, width = leaves * row + 26, max(round((tree.depth + 0.6) * column) + 14, 180)
    at = np.stack([10.0 + tree.depths * column, height - 18.0 - rows * row], axis=1)
    figure = new_figure(height, width=width)
    _edges(figure, tree, at, bend=0.35 * column)
    _circles(figure, at, np.ones(len(tree)) if f is None else np.clip(f, 0.0, 1.0))
    if f is not None and column >= _ROOM:
        inner = set(tree.parents[1:].tolist())
        for node in range(1, len(tree)):
            up = 2.5 if node in inner else -3.2  # beside a leaf, above the line to a child
            x, y = (at[node] + (7.0, up)) / 72
            share = _percent(float(f[node]))
            figure.text(x, y, share, transform=figure.dpi_scale_trans, fontsize=_FONT, color=ink("muted"))
    return Picture(name, title or f"A tree of {len(tree)} nodes, depth {tree.depth}", _in_words(tree, f), figure)


# Drawn on the figure itself: axes of their own would take most of the time.
def _edges(figure: Figure, tree: DraftTree, at: FloatArray, *, bend: float) -> None:
    from matplotlib.collections import LineCollection

    start, end = at[tree.parents[1:]], at[1:]
    corner = np.stack([start[:, 0] + bend, end[:, 1]], axis=1)
    lines = list(np.stack([start, corner, end], axis=1) / 72)
    colour = ink("line")
    figure.add_artist(LineCollection(lines, colors=colour, linewidths=1.2, transform=figure.dpi_scale_trans, zorder=1))


def _circles(figure: Figure, at: FloatArray, shade: FloatArray) -> None:
    """What is seldom accepted is pale."""
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path
    from matplotlib.transforms import IdentityTransform

    fills = (([ink("page")] * len(at), 1.0), ([ink("plan")] * len(at), shade.tolist()))
    for order, (colours, alpha) in enumerate(fills):
        edge = "none" if order == 0 else ink("plan")
        circles = PathCollection(
            [Path.unit_circle()], [_NODE], facecolors=colours, edgecolors="none", offsets=at / 72, zorder=2 + order
        )
        circles.set(alpha=alpha, transform=IdentityTransform(), offset_transform=figure.dpi_scale_trans)
        figure.add_artist(circles)
        if edge != "none":
            ring = PathCollection(
                [Path.unit_circle()],
                [_NODE],
                facecolors="none",
                edgecolors=edge,
                linewidths=0.9,
                offsets=at / 72,
                zorder=5,
            )
            ring.set(transform=IdentityTransform(), offset_transform=figure.dpi_scale_trans)
            figure.add_artist(ring)


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
