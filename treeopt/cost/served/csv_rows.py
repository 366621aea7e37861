"""Served step times from a CSV file: one row per batch size and shape.

    batch                                  requests in the step
    k | nodes,depth[,width] | paths | steps,topk,num_draft_tokens     what each request drafted
    step_ms | step_s | step_us | tpot_ms,accept_len | tok_s[,accept_len]   its time

`paths` is a JSON list of rank paths. `width` is how many nodes a drafter pass runs; a tree without it counts as
narrow. `tok_s` is of the whole batch; without `accept_len` it says which draft is fastest and not why. `k_max` above 0
marks a row of `k` 0 as the pause of a schedule, whose drafter still fills its cache. Other columns say where a row is
from and are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from treeopt.cost.served.bench_rows import HeldFile
from treeopt.cost.served.step import ServedStep, drafted_widths
from treeopt.errors import FileFormatError, TreeError
from treeopt.files.evidence_lines import Line
from treeopt.files.numbers import plain_number
from treeopt.files.opening import called
from treeopt.files.rows import csv_rows
from treeopt.tree import DraftTree

_NAMES: Final = {
    "batch": ("batch", "batch_size", "bs"),
    "k": ("k", "draft_tokens", "num_speculative_tokens"),
    "k_max": ("k_max",),
    "nodes": ("nodes", "n"),
    "depth": ("depth", "d"),
    "width": ("width",),
    "paths": ("paths", "tree"),
    "steps": ("steps", "num_steps"),
    "topk": ("topk", "eagle_topk"),
    "num_draft": ("num_draft_tokens", "num_draft"),
    "verify": ("verify_tokens",),
    "step_ms": ("step_ms", "step_time_ms"),
    "step_s": ("step_s", "step_time_s"),
    "step_us": ("step_us", "step_time_us"),
    "tpot_ms": ("tpot_ms",),
    "tok_s": ("tok_s", "tokens_per_s", "output_throughput", "throughput"),
    "length": ("accept_len", "accept_length", "acceptance_length", "acc_length", "al"),
}
MIN_STEP_S: Final = 1e-6
MAX_STEP_S: Final = 1000.0
_SECONDS: Final = {"step_ms": 1e-3, "step_s": 1.0, "step_us": 1e-6}


def read_csv_steps(path: Path, text: str) -> list[ServedStep]:
    """The rows of a file that holds `text`, in order.

    Raises:
        FileFormatError: a column or value that is missing, no number, out of range or contradicts another.
    """
    rows = csv_rows(HeldFile(path, held=text.removeprefix("\ufeff")))
    _, header = next(rows, (None, []))
    columns = _columns(path, header)
    return [
        _Row(
            line=line, values={name: cells[i] for name, i in columns.items() if cells[i : i + 1] not in ([], [""])}
        ).step()
        for line, cells in rows
    ]


@dataclass(frozen=True, kw_only=True)
class _Row:
    line: Line
    values: dict[str, str]

    def step(self) -> ServedStep:
        batch, length = self._whole("batch", low=1), self._length()
        nodes, depth, widths = self._shape()
        step_time_s = self._seconds(batch, nodes, length)
        if not MIN_STEP_S <= step_time_s <= MAX_STEP_S:
            raise self.line.error(
                f"a step of {step_time_s:g} s", hint="steps take microseconds to minutes: check the unit in the header"
            )
        verify = self._whole("verify", low=1) if "verify" in self.values else batch * nodes
        if verify != batch * nodes:
            raise self.line.error(
                f"{verify} tokens verified, but batch {batch} with {nodes} tokens each makes {batch * nodes}",
                hint="nodes count the root: a chain of K drafts verifies K + 1",
            )
        return ServedStep(
            batch=batch,
            nodes=nodes,
            depth=depth,
            widths=widths,
            step_time_s=step_time_s,
            tokens_per_step=length,
            place=self.line,
            off=nodes == 1 and "k_max" in self.values and self._whole("k_max", low=0) > 0,
            by_rate=nodes > 1 and length is None and "tok_s" in self.values and not self.values.keys() & {*_SECONDS},
        )

    def _shape(self) -> tuple[int, int, tuple[int, ...]]:
        if "paths" in self.values:
            return self._tree()
        if {"steps", "topk", "num_draft"} <= self.values.keys():
            steps, topk, drafted = (self._whole(name, low=0) for name in ("steps", "topk", "num_draft"))
            return (drafted, steps, drafted_widths(steps, topk, place=self.line)) if steps else (1, 0, ())
        if {"nodes", "depth"} <= self.values.keys():
            return self._sized()
        depth = self._whole("k", low=0)
        return depth + 1, depth, drafted_widths(depth, place=self.line)

    def _sized(self) -> tuple[int, int, tuple[int, ...]]:
        nodes, depth = self._whole("nodes", low=1), self._whole("depth", low=0)
        if nodes <= depth or (depth == 0) != (nodes == 1):
            raise self.line.error(f"{nodes} nodes cannot be {depth} deep", hint="nodes count the root")
        width = self._whole("width", low=1) if "width" in self.values else 1
        return nodes, depth, drafted_widths(depth, width, place=self.line)

    def _tree(self) -> tuple[int, int, tuple[int, ...]]:
        try:
            paths = json.loads(self.values["paths"])
            tree = DraftTree(tuple(tuple(int(rank) for rank in path) for path in paths))
        except (ValueError, TypeError, TreeError) as error:
            raise self.line.error(f"paths: {error}", hint="write a JSON list, as [[0],[1],[0,0]]") from None
        return len(tree), tree.depth, tuple(tree.expanded_widths.tolist()) if tree.depth else ()

    def _seconds(self, batch: int, nodes: int, length: float | None) -> float:
        for name, unit in _SECONDS.items():
            if name in self.values:
                return self._number(name) * unit
        tokens = 1.0 if length is None and nodes == 1 else length
        if "tpot_ms" in self.values:
            if tokens is None:
                raise self.line.error("time per token without the accepted length", hint="add a column accept_len")
            return self._number("tpot_ms") * 1e-3 * tokens
        # Without the accepted length the time is that of a step whose every draft is right (`ServedStep.by_rate`).
        return batch * float(nodes if tokens is None else tokens) / self._number("tok_s")

    def _length(self) -> float | None:
        return self._number("length", low=1.0) if "length" in self.values else None

    def _whole(self, name: str, *, low: int) -> int:
        value = self._number(name, low=low)
        if value != int(value):
            raise self.line.error(f"{name} {value:g} is not a whole number", hint="give a whole number")
        return int(value)

    def _number(self, name: str, *, low: float | None = None) -> float:
        text = self.values.get(name)
        if text is None:
            raise self.line.error(f"no {name}", hint="fill it in, or leave the row out")
        try:
            value = plain_number(text)
        except ValueError:
            raise self.line.error(f"{name} '{text}' is not a number", hint="give a measured number") from None
        if not (value > 0 if low is None else value >= low) or value > 1e12:
            bound = "above 0" if low is None else f"{low:g} or more"
            raise self.line.error(f"{name} {text} is out of range", hint=f"it must be {bound}, and finite")
        return value


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    """Where each known column stands.

    Raises:
        FileFormatError: the header lacks what a step needs.
    """
    known = {alias: name for name, aliases in _NAMES.items() for alias in aliases}
    found: dict[str, int] = {}
    for i, column in enumerate(header):
        name = known.get(column.strip().lower())
        if name is not None and name in found:
            raise FileFormatError(f"{called(path)}:1: two columns for {name}", hint="keep one of them")
        if name is not None:
            found[name] = i
    missing = list(_missing(found.keys() & _NAMES.keys()))
    if missing:
        raise FileFormatError(
            f"{called(path)}:1: the header lacks {' and '.join(missing)}", hint=f"found: {', '.join(header)}"
        )
    return found


def _missing(found: set[str]) -> Iterator[str]:
    if "batch" not in found:
        yield "batch"
    if not ({"k"} <= found or {"paths"} <= found or {"nodes", "depth"} <= found or {"steps", "topk"} <= found):
        yield "what was drafted (k, or nodes and depth, or paths)"
    if not found & {*_SECONDS, "tok_s", "tpot_ms"}:
        yield "a time (step_ms, or tok_s and accept_len)"
