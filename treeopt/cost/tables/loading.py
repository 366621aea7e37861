"""Cost tables by file, whatever engine wrote them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from treeopt.cost.served.reading import is_csv, steps_of
from treeopt.cost.served.step import chain_cells
from treeopt.cost.step_cost import StepCost
from treeopt.cost.step_table import ChainTable, StepTable, TableStep
from treeopt.cost.tables.sglang import ADDITIVE_KEY, SAMPLES_KEY, read_additive_table, read_token_table
from treeopt.cost.tables.vllm import STATS_KEY, read_vllm_table
from treeopt.errors import InputError
from treeopt.files.documents import parse_document, read_text


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """A table, the hash of the bytes that it was read from, and what was found odd in it."""

    table: StepTable
    name: str
    sha256: str
    findings: tuple[str, ...] = ()

    def step(self, *, carried_by: StepCost | None = None, context: int | None = None) -> TableStep:
        """The table as a cost of steps; see `TableStep`."""
        return TableStep(table=self.table, name=self.name, context=context, carried_by=carried_by)


def load_cost_table(path: Path) -> CostTable:
    """A SGLang DSPARK table, a vLLM batch x K table, or rows of served chains (CSV or an engine's benchmark).

    Raises:
        InputError: the file cannot be read, or holds steps of trees.
        FileFormatError: it is none of these, or holds a value that cannot be right, with its line.
    """
    text = read_text(path, what="cost table")
    found = _read(path, text)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return CostTable(table=found.table, name=path.name, sha256=sha256, findings=found.findings)


class _Found(NamedTuple):
    table: StepTable
    findings: tuple[str, ...] = ()


def _read(path: Path, text: str) -> _Found:
    if is_csv(text) or _is_json_lines(text):
        return _served(path, text)
    document = parse_document(text, name=str(path), what="cost table")
    keys = document.value if isinstance(document.value, dict) else {}
    if ADDITIVE_KEY in keys:
        return _Found(read_additive_table(document.root))
    if SAMPLES_KEY in keys:
        return _Found(read_token_table(document.root))
    if STATS_KEY in keys:
        found = read_vllm_table(document.root)
        return _Found(found.table, found.findings)
    return _served(path, text)


def _is_json_lines(text: str) -> bool:
    """Whether the first line is a JSON value of its own, as in benchmarks' JSONL; tables are one value in all."""
    first, _, more = text.lstrip().partition("\n")
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(first)
        return bool(more.strip())
    return False


def _served(path: Path, text: str) -> _Found:
    found = steps_of(path, text)
    trees = [row for row in found.rows if not row.is_chain]
    if trees:
        raise InputError(
            trees[0].say("a tree's time says nothing of other trees"),
            hint="fit engine constants to it instead: `treeopt profile fit --steps`",
        )
    return _Found(ChainTable.from_cells(chain_cells(found.rows)), found.findings)
