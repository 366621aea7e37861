"""What the recorder inside a serving engine wrote: per draft, the ranks along it up to the first miss."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from treeopt.acceptance.importers.reading import SERVED, ImportJob, Reading, Tally
from treeopt.acceptance.paths import MAX_RANKS
from treeopt.acceptance.table import DepthRanks
from treeopt.errors import FileFormatError
from treeopt.files.evidence_lines import Line, require

RECORDED_WORDS: Final = '"treeopt_recorded"'
_MAX_DEPTH: Final = 64
_HINT: Final = "a recorded shard starts with its header, then has a JSON object with ranks_to_miss on each line"
_NOTE: Final = "ranks behind a wrong guess were not recorded: deeper side branches are estimated"


def read_recorded(job: ImportJob) -> Reading:
    """Depth-rank evidence: depth d was reached by the drafts whose first d - 1 tokens were right."""
    counts = np.zeros((_MAX_DEPTH, MAX_RANKS))
    reached, documents, drafted, accepted = np.zeros(_MAX_DEPTH), set[int](), 0, 0
    headed = False
    for line in job.file.lines():
        headed = headed or RECORDED_WORDS in line.text
        row = _row(line) if headed else None
        if row is None or "treeopt_recorded" in row:  # several shards end to end have a header each
            continue
        ranks, held = row["ranks_to_miss"], (row["document"], row["drafted"], row["accepted"])
        if not _plausible(ranks, *held):
            raise line.error("not a draft's ranks", hint=_HINT)
        documents.add(held[0])
        drafted, accepted = drafted + held[1], accepted + held[2]
        reached[: len(ranks)] += 1
        for depth, rank in enumerate(ranks):
            if rank >= 0:
                counts[depth, rank] += 1
    require(bool(reached[0]), job.file, "recorded draft")
    depth, width = int(np.count_nonzero(reached)), int(np.flatnonzero(counts.any(axis=0)).max(initial=0)) + 1
    evidence = DepthRanks.from_counts(reached=reached[:depth], counts=counts[:depth, :width])
    drafts = int(reached[0])
    tally = Tally(
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        mean_accepted_length=1 + accepted / drafts,
    )
    source = job.source(evidence, tally=tally, conditions=SERVED, documents=len(documents), note=_NOTE)
    return Reading(sources=(source,))


def _row(line: Line) -> dict[str, Any] | None:
    """A line's object; None for a blank one, and for the last where a killed process cut it off."""
    if not line.text.strip():
        return None
    try:
        row = json.loads(line.text)
    except (ValueError, RecursionError):
        if not line.complete:
            return None
        raise line.error("not valid JSON", hint=_HINT) from None
    keys = {"treeopt_recorded"} if isinstance(row, dict) and "treeopt_recorded" in row else _KEYS
    if not isinstance(row, dict) or not keys <= row.keys():
        raise FileFormatError(f"{line.name}:{line.number}: no recorded draft", hint=_HINT)
    return row


_KEYS: Final = {"ranks_to_miss", "document", "drafted", "accepted"}


def _plausible(ranks: Any, document: Any, drafted: Any, accepted: Any) -> bool:
    """Whole numbers, and as many ranks as were accepted, with one more where the draft was wrong somewhere."""
    if not isinstance(ranks, list) or not all(type(n) is int for n in (document, drafted, accepted, *ranks)):
        return False
    long_enough = len(ranks) in (accepted, accepted + 1) and 1 <= len(ranks) <= min(drafted, _MAX_DEPTH)
    return long_enough and 0 <= accepted <= drafted and all(-1 <= rank < MAX_RANKS for rank in ranks)
