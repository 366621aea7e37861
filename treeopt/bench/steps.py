"""Measured steps as the CSV that `treeopt profile fit --steps` reads, and the command that does."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from treeopt.bench.result import BenchCell
from treeopt.cost.fit.engine_profile import Served, fit_served
from treeopt.cost.fit.engine_steps import MIN_BATCHES, MIN_ROWS
from treeopt.errors import TreeoptError
from treeopt.planner.inputs import Inputs


def steps_csv(cells: Sequence[BenchCell]) -> str:
    """One row per way and batch size: `batch,way,nodes,depth,paths,context,step_ms,accept_len`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("batch", "way", "nodes", "depth", "paths", "context", "step_ms", "accept_len"))
    for cell in cells:
        tree = cell.tree
        paths = json.dumps([list(path) for path in tree.paths], separators=(",", ":"))
        measured = f"{cell.measured.step_time_s.value * 1e3:.6g}", f"{cell.measured.acceptance_length.value:.6g}"
        writer.writerow((cell.batch, cell.way.name, len(tree), tree.depth, paths, cell.context, *measured))
    return text.getvalue()


def fit_context(cells: Sequence[BenchCell]) -> int:
    """L for `treeopt profile fit --context`, which takes one for all rows: the mean over the rows."""
    return round(sum(cell.context for cell in cells) / len(cells))


def fit_note(cells: Sequence[BenchCell], inputs: Inputs, path: Path) -> str:
    """The command that fits the steps in `path`, once it has been seen to work; else what they lack."""
    too_few = _too_few(cells)
    if too_few is not None:
        return too_few
    names, out = inputs.names, _unused(path)
    served = Served(
        hardware=inputs.hardware,
        model=inputs.model,
        drafter=inputs.kernels.drafter,
        dtype=names.dtype,
        tp=names.tp,
        context=fit_context(cells),
        capture_tokens=names.capture_tokens or (),
    )
    try:
        fit_served([path], served, name=out.stem)
    except TreeoptError as error:
        return (
            f"treeopt profile fit --steps cannot fit them to the plan's hardware {names.hardware} and model "
            f"{names.model}: {error}"
        )
    words = ["treeopt", "profile", "fit", "--steps", str(path), "--hardware", names.hardware, "--model", names.model]
    words += [
        "--drafter",
        names.drafter,
        *([] if names.dtype is None else ["--dtype", names.dtype]),
        "--context",
        str(served.context),
    ]
    words += [] if names.tp == 1 else ["--tp", str(names.tp)]
    words += ["--capture-sizes", ",".join(map(str, served.capture_tokens))] if served.capture_tokens else []
    return f"fit them with {shlex.join([*words, '--out', str(out)])}"


def _too_few(cells: Sequence[BenchCell]) -> str | None:
    """How much more must run before there is something to fit."""
    ways = Counter(cell.batch for cell in cells)
    rows, batches = len(cells), len(ways)
    sizes = max(MIN_BATCHES - batches, math.ceil((MIN_ROWS - rows) / min(ways.values())))
    if sizes <= 0:
        return None
    more = f"run {sizes} more of --batches"
    if batches >= MIN_BATCHES:
        more += f", or {math.ceil((MIN_ROWS - rows) / batches)} more of --with (chain:K of other lengths)"
    return (
        f"{rows} step times at {batches} batch sizes are too few for treeopt profile fit --steps, which takes "
        f"{MIN_ROWS} at {MIN_BATCHES}: {more}"
    )


def _unused(path: Path) -> Path:
    """A name beside `path` for a profile: fitting again must not replace the one that the plan was made from."""
    stems = itertools.chain((f"{path.stem}-hardware",), (f"{path.stem}-hardware-{i}" for i in itertools.count(2)))
    return next(out for out in (path.with_name(f"{stem}.yaml") for stem in stems) if not out.exists())
