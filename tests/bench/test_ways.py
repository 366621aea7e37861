from __future__ import annotations

import numpy as np
import pytest
from plans import bucket_of, plan_of

from treeopt.acceptance.table import DepthRankModel
from treeopt.bench.runs import ways_for
from treeopt.errors import InputError
from treeopt.planner.compare import parse_rival
from treeopt.tree import DraftTree

TREE = DraftTree(((0,), (1,), (0, 0)))
RANKS = DepthRankModel(np.array([[0.7, 0.2]]))


def test_each_different_tree_runs_once_under_all_its_names() -> None:
    plan = plan_of(bucket_of(DraftTree(()), 1, 2), bucket_of(DraftTree.chain(1), 3, 4), bucket_of(TREE, 5, 8))
    names = {batch: [way.name for way in ways_for(plan, batch, 2048, [], RANKS)] for batch in (2, 4, 8)}
    assert names == {
        2: ["plain, plan", "best chain"],
        4: ["plain", "best chain, plan"],
        8: ["plain", "best chain", "plan"],
    }


def test_rivals_run_too() -> None:
    plan = plan_of(bucket_of(TREE, 1, 8))
    ways = ways_for(plan, 8, 2048, [parse_rival("chain:3"), parse_rival("none")], RANKS)
    assert [(way.name, way.tree) for way in ways] == [
        ("plain, none", DraftTree(())),
        ("best chain", DraftTree.chain(1)),
        ("plan", TREE),
        ("chain:3", DraftTree.chain(3)),
    ]


def test_a_batch_size_that_the_plan_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="the plan has no batch 9"):
        ways_for(plan_of(bucket_of(TREE, 1, 8)), 9, 2048, [], RANKS)
