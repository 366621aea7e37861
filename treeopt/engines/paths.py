"""The path list that Medusa, EAGLE-1 and Hydra load: `[[0], [1], [0, 0], ...]`, the root left out.

All three sort the list themselves and index candidates as rank + 10 per parent or head. None of them checks: a
duplicate loses a node, a rank of 10 or more reads the next head or parent, and Hydra counts siblings instead of
reading ranks. (The others read them, but a gap is a mistake: the sibling left out is accepted more often.)

EAGLE-1 (eagle-llm 1.2.1, `model/utils_c.py`) fails on trees of depth 1. It also numbers the rows to draft from by
parents WITH grandchildren: where one without comes before, the later nodes of that depth are drafted from the wrong
parent. `treeopt` refuses all of these.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from treeopt.draft_family import StaticTrees
from treeopt.engines.format import CheckedBy, Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError
from treeopt.files.typed import tree_at
from treeopt.tree import DraftTree

_FILE: Final = "choices.json"
_RANKS: Final = 10  # TOPK in all three


def export_paths(tree: DraftTree) -> str:
    """The tree as one line of JSON, sorted by (depth, path), the root left out as these engines expect."""
    return json.dumps([list(path) for path in tree.paths])


def _engine(
    name: str,
    title: str,
    checked: str,
    checked_by: CheckedBy,
    limits: StaticTrees,
    launch: str,
    *notes: str,
    drafter: str = "",
) -> Engine:
    """An engine that loads a path list, in all releases, and runs one kind of drafter (none named: any)."""

    def write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
        tree = schedule.only_tree
        if setup.heads is not None and (reason := replace(limits, max_depth=setup.heads).refusal(tree)) is not None:
            raise InputError(
                f"the tree does not fit --heads {setup.heads}: {reason}", hint=f"search with --max-depth {setup.heads}"
            )
        return Written(
            content=export_paths(tree),
            file_name=_FILE,
            launch=launch.format(file=setup.written_to(_FILE)),
            proof=f"tokens per step exceed 1; the mask has {len(tree)} rows",
            notes=notes,
        )

    words = {drafter: DrafterWord(text="")} if drafter else {}
    form = Format(name="paths", limits=limits, write=write, read=_read, drafters=Drafters(engine=title, words=words))
    return Engine(name=name, title=title, checked=checked, checked_by=checked_by, formats=(form,))


def _read(source: EngineFile) -> Found | None:
    listed = source.list()
    if listed is None or not all(isinstance(path, list) for path in listed.value):
        return None
    return Found(DraftSchedule.constant(tree_at(listed)))


_HEADS: Final = "the tree must not be deeper than the model has heads (--heads checks it)"

PATHS: Final = _engine("paths", "a plain path list", "", "", StaticTrees(rank_gaps=True), "json.load(open({file!r}))")
MEDUSA: Final = _engine(
    "medusa",
    "Medusa",
    "commit e2a5d20",
    "documentation only",
    StaticTrees(max_ranks=_RANKS, min_depth=1),
    "model.medusa_generate(..., medusa_choices=json.load(open({file!r})))",
    _HEADS,
    drafter="medusa",
)
HYDRA: Final = _engine(
    "hydra",
    "Hydra",
    "commit 3f39fbd",
    "documentation only",
    StaticTrees(max_ranks=_RANKS, min_depth=1),
    "model.hydra_generate(..., hydra_choices=json.load(open({file!r})))",
    _HEADS,
    drafter="medusa",
)
EAGLE1: Final = _engine(
    "eagle1",
    "EAGLE-1 (eagle-llm)",
    "1.2.1",
    "own code",
    StaticTrees(max_ranks=_RANKS, min_depth=2, leading_parents=True),
    "model.eagenerate(..., tree_choices=json.load(open({file!r})))",
    "the drafter reads eagle/model/choices.py mc_sim_7b_63 when it is built: put the list there too",
    drafter="eagle",
)
