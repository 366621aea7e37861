"""A trace of any size is walked and counted in blocks, and gives what it gives in one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import traces, trees

from treeopt.acceptance import path_trie, trace
from treeopt.acceptance.replay import accepted_lengths, accepted_on, draft_starts, replay
from treeopt.acceptance.trace import Trace
from treeopt.tree import DraftTree


def plain_starts(recorded: Trace, accepted: np.ndarray) -> list[int]:
    """Every walk step by step."""
    visits = [0] * len(recorded)
    for first, end in zip(recorded.bounds[:-1].tolist(), recorded.bounds[1:].tolist(), strict=True):
        for phase in range(recorded.depth):
            at = first + phase
            while at < end and recorded.complete[at]:
                visits[at] += 1
                at += int(accepted[at]) + 1
    return visits


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(recorded=traces(), tree=trees(), rows=st.integers(1, 9))
def test_blocks_change_nothing(recorded: Trace, tree: DraftTree, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not recorded.complete.any():
        return
    weight = np.arange(1.0, len(recorded) + 1)
    whole = (replay(recorded, tree), recorded.count(weight), accepted_on(recorded, tree))
    monkeypatch.setattr(trace, "_WALK_ROWS", rows)
    monkeypatch.setattr(trace, "CHUNK_ROWS", rows)
    monkeypatch.setattr(path_trie, "CHUNK_ROWS", rows)
    again = Trace(rank=recorded.rank, doc_id=recorded.doc_id, pos=recorded.pos)
    assert again.paths[1].tolist() == recorded.paths[1].tolist()
    for name in ("tokens", "steps", "position_tokens", "positions"):
        assert getattr(replay(again, tree), name).tolist() == getattr(whole[0], name).tolist()
    assert list(again.count(weight)) == list(whole[1])
    assert accepted_on(again, tree).tolist() == whole[2].tolist()
    accepted = accepted_lengths(again.rank, tree)
    assert draft_starts(again, accepted).tolist() == plain_starts(again, accepted)
