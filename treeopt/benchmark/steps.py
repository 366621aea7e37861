"""Measured steps as the CSV that `treeopt profile fit --steps` reads."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from treeopt.benchmark.result import Cell


def steps_csv(cells: Sequence[Cell]) -> str:
    """One row per way and batch size: `batch,way,nodes,depth,paths,context,step_ms,accept_len`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("batch", "way", "nodes", "depth", "paths", "context", "step_ms", "accept_len"))
    for cell in cells:
        tree = cell.tree
        paths = json.dumps([list(path) for path in tree.paths], separators=(",", ":"))
        measured = f"{cell.step_time_s.value * 1e3:.6g}", f"{cell.tokens.value:.6g}"
        writer.writerow((cell.batch, cell.way.name, len(tree), tree.depth, paths, cell.context, *measured))
    return text.getvalue()


def fit_context(cells: Sequence[Cell]) -> int:
    """L for `treeopt profile fit --context`, which takes one for all rows: the mean over the rows."""
    return round(sum(cell.context for cell in cells) / len(cells))
