"""What the recorder inside an engine sees of a chain tells what widening it at the miss would give."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from shared import DATA, needs_shared

from treeopt.acceptance.importers import read_evidence
from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.replay import accepted_lengths, draft_starts, replay
from treeopt.acceptance.trace import Trace
from treeopt.tree import DraftTree

TRACES = sorted((DATA / "traces").glob("*.npz")) if (DATA / "traces").is_dir() else []
BIAS = 0.02
WIDENED = 8  # nodes beside the chain
RANKS = 16


def shard(trace: Trace, K: int) -> str:
    """The rows of a recorder beside a server that drafts chains of K, each draft from all its start phases."""
    accepted = accepted_lengths(trace.rank, DraftTree.chain(K))
    starts = draft_starts(trace, accepted)
    lines = [json.dumps({"treeopt_recorded": 1, "engine": "vllm", "top": RANKS})]
    for row in np.flatnonzero(starts).tolist():
        ranks = trace.rank[row, : min(int(accepted[row]) + 1, K)].tolist()
        ranks = [rank if rank < RANKS else -1 for rank in ranks]
        about = {"document": int(trace.document[row]), "drafted": K, "accepted": int(accepted[row])}
        lines += [json.dumps({"ranks_to_miss": ranks, **about})] * int(starts[row])
    return "\n".join(lines) + "\n"


@needs_shared
@pytest.mark.parametrize("number", range(len(TRACES)), ids=[path.stem for path in TRACES])
def test_widening_a_chain_at_its_miss_is_predicted_within_two_percent(tmp_path: Path, number: int) -> None:
    trace = read_trace(TRACES[number])
    K = 3 + number % min(4, trace.depth - 2)
    path = tmp_path / "ranks.jsonl"
    path.write_text(shard(trace, K))
    (source,) = read_evidence([path]).sources
    model = source.profile.model()
    paths = [(0,) * depth for depth in range(1, K + 1)]
    rows = model.conditional
    gains = [
        (float(np.prod([rows(np.zeros((1, e), dtype=np.int64))[0, 0] for e in range(d)]) * share), d, rank)
        for d in range(K)
        for rank, share in enumerate(rows(np.zeros((1, d), dtype=np.int64))[0])
        if rank
    ]
    for _, depth, rank in sorted(gains, reverse=True)[:WIDENED]:
        paths.append((0,) * depth + (rank,))
        tree = DraftTree(tuple(paths))
        predicted = expected_tokens(path_probabilities(model, tree))
        assert abs(predicted / replay(trace, tree).tokens_per_step - 1.0) < BIAS, (K, tree.paths)
