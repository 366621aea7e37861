"""Drafts that several tests export: one intent for three engines, trees of every kind of limit."""

from __future__ import annotations

import json

from shared import SHARED

from treeopt.draft_family import OFF, DynamicTree
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.tree import DraftTree

chain = DraftTree.chain
# K = 4 for 1-4, K = 2 for 5-16, off from 17.
INTENT = DraftSchedule(steps=(ScheduleStep(1, chain(4)), ScheduleStep(5, chain(2)), ScheduleStep(17, OFF)), covers=256)
CHAIN = DraftSchedule.constant(chain(4))
TRIPLE = DraftSchedule.constant(DynamicTree(3, 4, 12))
BINARY = DraftSchedule.constant(DraftTree.from_widths([2, 2]))
# EAGLE-1's hand-made tree (SafeAILab/EAGLE, choices.py): ranks below 4, children by depth 4, 2-1-1, ...
EAGLE = DraftSchedule.constant(
    DraftTree(
        (
            *((0,), (1,), (2,), (3,)),
            *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
            *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
            *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2), (0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
        )
    )
)


def shared_trees() -> dict[str, DraftTree]:
    """Trees that others published, by name."""
    found = {}
    for path in sorted((SHARED / "data" / "trees").glob("*.json")):
        document = json.loads(path.read_text())
        found[document["name"]] = DraftTree(tuple(tuple(p) for p in document["paths"]))
    return found
