"""What `treeopt show` prints, as a picture."""

from __future__ import annotations

from treeopt.plan.plan import Plan
from treeopt.planner.curves import curves_of
from treeopt.planner.show import ShownTree
from treeopt.render.pictures.speed import rates_picture
from treeopt.render.pictures.style import Picture
from treeopt.render.pictures.trees import tree_picture


def picture_of(shown: Plan | ShownTree) -> Picture:
    """The tree; of a plan of several buckets the tokens/s that it has, at its longest context."""
    if isinstance(shown, ShownTree):
        return tree_picture(shown.tree, shown.path_probabilities)
    return rates_picture(curves_of(shown.at_context(shown.context), None))
