"""SGLang's DDTree rank probe: per depth, how often the right token was among the drafter's first 1, 2, 4, ... guesses.

Format: sgl-project/sglang PR 29907, DDTree worker (July 2026): every 50 steps a table of all steps so far, so the last
one holds them all. A depth is reached along the accepted tree path, and rates have two decimals.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.conversions import cumulative_from_ranks, ranks_from_cumulative
from treeopt.acceptance.importers.cumulative import TopK, split
from treeopt.acceptance.importers.reading import SERVED, ImportJob, Reading, Tally
from treeopt.acceptance.table import DepthRanks
from treeopt.errors import FileFormatError
from treeopt.files.evidence_lines import Line, require

_TITLE: Final = "rank-probe] target-token rank"
_ROW: Final = re.compile(r"^d(\d{1,3})\s+(\d{1,15})((?:\s+\d{1,3}\.\d+)+)\s*$")
_NOTE: Final = "counts are restored from rates with two decimals"


class _Row(NamedTuple):
    reached: int
    tops: list[TopK]


def read_sglang_rank_probe(job: ImportJob) -> Reading:
    """Depth-rank evidence of the ranks that are known alone; wider steps of the table are known sums."""
    table: list[_Row] = []
    sizes: list[int] = []
    for line in job.file.lines():
        if _TITLE in line.text:
            table = []
        elif line.text.startswith("depth reached"):
            sizes = [int(size) for size in re.findall(r"\bt(\d{1,4})\b", line.text)]
        elif found := _ROW.match(line.text):
            _add_row(table, line, sizes, found)
    require(bool(table), job.file, f"`{_TITLE}` table")
    known = split([row.tops for row in table])
    require(known.rates.size > 0, job.file, "`t1` column")
    reached = np.array([row.reached for row in table], dtype=np.float64)[: len(known.rates)]
    counts = ranks_from_cumulative(np.rint(cumulative_from_ranks(known.rates) * reached[:, None]))
    evidence = DepthRanks.from_counts(reached=reached, counts=counts)
    source = job.source(
        evidence,
        tally=Tally(drafts=table[0].reached),
        conditions=SERVED,
        known_sums=known.known_sums,
        note=_NOTE,
    )
    return Reading(sources=(source,))


def _add_row(table: list[_Row], line: Line, sizes: list[int], found: re.Match[str]) -> None:
    rates = [float(rate) for rate in found[3].split()]
    if len(rates) != len(sizes) or int(found[1]) != len(table):
        if not line.complete:
            return
        raise _broken(line, len(rates), len(sizes), len(table))
    reached = int(found[2])
    if table and reached > table[-1].reached:
        raise line.error(
            f"depth {len(table)} was reached {reached} times, the one above it {table[-1].reached}",
            hint="a depth is reached only through the one above it",
        )
    table.append(_Row(reached, [TopK(size, rate, line) for size, rate in zip(sizes, rates, strict=True)]))


def _broken(line: Line, rates: int, sizes: int, depth: int) -> FileFormatError:
    return line.error(
        f"{rates} rates under {sizes} columns, expected the row of depth {depth}",
        hint="give the table as it was logged",
    )
