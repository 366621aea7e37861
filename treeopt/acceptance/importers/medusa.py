"""Accuracy tables of Medusa heads: cumulative top-k per head, as a wandb CSV or as `TopK=` text.

Formats: FasterDecoding/Medusa assets/medusa_acc.csv (commit e2a5d20), columns `train/medusa{head}_top{k}`; and the
report in NVIDIA/TensorRT-LLM#2506, where `TopK=n` counts the ranks 0 to n. A head is measured on the true text,
whatever the heads before it guessed, so multiplying along a path takes the heads as independent.
"""

from __future__ import annotations

import re
from typing import Final

from treeopt.acceptance.importers.cumulative import TopK, split
from treeopt.acceptance.importers.reading import ImportedSource, ImportJob, Reading, Tally
from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.table import DepthRanks
from treeopt.files.evidence_lines import Line, Place, require
from treeopt.files.numbers import plain_number
from treeopt.files.rows import csv_rows

_COLUMN: Final = re.compile(r"medusa(\d{1,2})_top(\d{1,3})\b")
_SECTION: Final = re.compile(r"^\s*TopK=(\d{1,3})\s*$")
_ACCURACY: Final = re.compile(r"Head (\d{1,2}) Accuracy=(\d{1,3}(?:\.\d{1,20})?)\b")
_NOTE: Final = "each head was measured alone"

Heads = dict[int, list[TopK]]


def read_medusa_csv(job: ImportJob) -> Reading:
    """Depth-rank rates, one profile per row (a model)."""
    rows = csv_rows(job.file)
    header = next((cells for _, cells in rows), [])
    columns = {i: (int(m[1]), int(m[2])) for i, name in enumerate(header) if (m := _COLUMN.search(name))}
    require(bool(columns), job.file, "`medusa0_top1` column")
    name_at = next((i for i, name in enumerate(header) if name.strip().lower() == "name"), None)
    sources = []
    for line, cells in rows:
        heads: Heads = {}
        for i, (head, size) in columns.items():
            heads.setdefault(head, []).append(TopK(size, _probability(cells, i, line), line))
        model = cells[name_at] if name_at is not None and name_at < len(cells) else None
        sources.append(_source(job, heads, line, label=model or "", target=model))
    require(bool(sources), job.file, "row of accuracies")
    return Reading(sources=tuple(sources))


def read_medusa_topk(job: ImportJob) -> Reading:
    """Depth-rank rates of the ranks that are known alone; a step of several ranks stays a sum."""
    heads: Heads = {}
    size = 0
    place: Place = job.file
    for line in job.file.lines():
        if found := _SECTION.match(line.text):
            size = int(found[1]) + 1
        elif size and (found := _ACCURACY.search(line.text)):
            heads.setdefault(int(found[1]), []).append(TopK(size, float(found[2]), line))
            place = line
    require(bool(heads), job.file, "`Head 0 Accuracy=` under a `TopK=` line")
    return Reading(sources=(_source(job, heads, place, label="", target=None),))


def _probability(cells: list[str], column: int, line: Line) -> float:
    try:
        value = plain_number(cells[column])
    except (IndexError, ValueError):
        raise line.error(f"column {column + 1} holds no number", hint="every model needs all columns") from None
    if not 0 <= value <= 1:
        raise line.error(f"column {column + 1} is {value:.10g}", hint="an accuracy is a fraction, 0 to 1")
    return value


def _source(job: ImportJob, heads: Heads, place: Place, *, label: str, target: str | None) -> ImportedSource:
    if sorted(heads) != list(range(len(heads))):
        raise place.error(f"heads {sorted(heads)} have a gap", hint="head i drafts depth i + 1: give all of them")
    known = split([sorted(heads[head], key=lambda top: top.size) for head in range(len(heads))])
    if known.rates.size == 0:
        raise place.error("the first head has no top-1 accuracy", hint="without it nothing can be planned")
    conditions = Conditions(target=target, sampling="all-positions")
    return job.source(
        DepthRanks(rates=known.rates),
        label=label,
        tally=Tally(),
        conditions=conditions,
        known_sums=known.known_sums,
        note=_NOTE,
    )
