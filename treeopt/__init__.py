"""treeopt: which draft tree each batch size should verify, and whether speculation pays there at all."""

from treeopt.errors import TreeoptError
from treeopt.plan.plan import Plan
from treeopt.plan.reading import load_plan
from treeopt.tree import DraftTree

__all__ = ["DraftTree", "Plan", "TreeoptError", "load_plan"]
