"""treeopt: which draft tree each batch size should verify, and whether speculation pays there at all.

    plan = treeopt.search([1, 8, 32], ranks="my-trace.npz", model="config.json", hardware="h200-sxm-vllm-0.24")
    treeopt.compare(plan, "none", "chain:4")
    tree = treeopt.load_plan("plan.yaml").tree_for(32)

Each says what the command of that name says. Importing this package imports none of them: a name is loaded when it is
first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treeopt.errors import TreeoptError
    from treeopt.plan.plan import Plan
    from treeopt.plan.reading import load_plan
    from treeopt.planner.compare import compare
    from treeopt.planner.search import search
    from treeopt.runtime import BucketTables, load_runtime
    from treeopt.tree import DraftTree

__all__ = ["BucketTables", "DraftTree", "Plan", "TreeoptError", "compare", "load_plan", "load_runtime", "search"]

_HOME = {
    "BucketTables": "treeopt.runtime",
    "DraftTree": "treeopt.tree",
    "Plan": "treeopt.plan.plan",
    "TreeoptError": "treeopt.errors",
    "compare": "treeopt.planner.compare",
    "load_plan": "treeopt.plan.reading",
    "load_runtime": "treeopt.runtime",
    "search": "treeopt.planner.search",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'treeopt' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
