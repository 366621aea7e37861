"""Cost tables by file, whatever engine wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treeopt.cost.base import StepCost
from treeopt.cost.steps.reading import is_csv, read_steps
from treeopt.cost.table import ChainTable, StepTable, TableStep
from treeopt.cost.tables.sglang import ADDITIVE_KEY, SAMPLES_KEY, read_additive_table, read_token_table
from treeopt.cost.tables.vllm import STATS_KEY, read_vllm_table
from treeopt.documents import read_document
from treeopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """A table, the hash of its file, and what was found odd in it."""

    table: StepTable
    name: str
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
    if is_csv(path):
        return _served(path)
    document = read_document(path, what="cost table")
    keys = document.value if isinstance(document.value, dict) else {}
    if ADDITIVE_KEY in keys:
        return CostTable(table=read_additive_table(document.root), name=path.name)
    if SAMPLES_KEY in keys:
        return CostTable(table=read_token_table(document.root), name=path.name)
    if STATS_KEY in keys:
        found = read_vllm_table(document.root)
        return CostTable(table=found.table, name=path.name, findings=found.findings)
    return _served(path)


def _served(path: Path) -> CostTable:
    found = read_steps([path])
    trees = [row for row in found.rows if not row.is_chain]
    if trees:
        raise InputError(
            trees[0].say("a tree's time says nothing of other trees"),
            hint="fit engine constants to it instead: `treeopt profile fit --steps`",
        )
    cells = {(row.batch, row.depth): row.step_time_s for row in found.rows}
    return CostTable(table=ChainTable.from_cells(cells), name=path.name, findings=found.findings)
