"""Reports for a terminal, one file per report. Nothing here computes, and only `treeopt.cli` calls it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from treeopt.render.comparisons import comparison_table, replay_table
    from treeopt.render.plans import alternatives, bucket_table, one_bucket, plan_heading
    from treeopt.render.ranks import imported_report, published_report, rank_report
    from treeopt.render.trees import draw, mask_picture, node_table

__all__ = [
    "alternatives",
    "bucket_table",
    "comparison_table",
    "draw",
    "imported_report",
    "mask_picture",
    "node_table",
    "one_bucket",
    "plan_heading",
    "published_report",
    "rank_report",
    "replay_table",
]

_REPORTS: Final = ("plans", "trees", "comparisons", "ranks")


def __getattr__(name: str) -> Any:
    """The report of that name; its file is loaded when it is asked for, with all that it reports on."""
    if name in __all__:
        for report in _REPORTS:
            module = import_module(f"{__name__}.{report}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(name)
