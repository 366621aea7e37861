"""vLLM's table of milliseconds per batch size and K, with the acceptance that goes with it.

    {"is_online": false, "max_num_speculative_tokens": 5, "acceptance_rate_per_pos": [...],
     "batch_stats": {"1": {"0": 6.9, "1": 7.6, ...}, "64": {...}}}

Format: the dynamic speculation branch of vllm-project/vllm PR 32374. The rates are those of the first i drafts all
accepted. vLLM releases load ranges of batch sizes instead (`num_speculative_tokens_per_batch_size`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from treeopt.acceptance.position import PositionSurvival
from treeopt.cost.served.bench_rows import batch_table_rows
from treeopt.cost.served.checks import checked
from treeopt.cost.served.step import chain_cells
from treeopt.cost.step_cost import StepCost
from treeopt.cost.step_table import ChainTable, known_times
from treeopt.files.documents import Field

STATS_KEY: Final = "batch_stats"


@dataclass(frozen=True, kw_only=True)
class VllmTable:
    """Seconds by batch size and K, and how far chains get, where the file says it; `findings` is what was odd."""

    table: ChainTable
    survival: PositionSurvival | None = None
    findings: tuple[str, ...] = ()


def read_vllm_table(root: Field) -> VllmTable:
    """The table of a file.

    Raises:
        FileFormatError: a key that is missing or unknown, a time that cannot be right, or rates that rise.
    """
    root.only("is_online", "max_num_speculative_tokens", "acceptance_rate_per_pos", STATS_KEY)
    found = checked(list(batch_table_rows(root.document)))
    if not found.rows:
        raise root.get(STATS_KEY).error("no times", hint="give milliseconds per batch size and K")
    rates = root.get("acceptance_rate_per_pos", [])
    survival = [rate.number(low=0, high=1) for rate in rates.items()]
    if survival != sorted(survival, reverse=True):
        raise rates.error(
            "the rates rise", hint="they count the first i drafts all accepted: multiply up conditional ones"
        )
    return VllmTable(
        table=ChainTable.from_cells(chain_cells(found.rows)),
        survival=PositionSurvival(survival=np.array(survival)) if survival else None,
        findings=found.findings,
    )


def vllm_table_json(table: VllmTable) -> str:
    """The file with every K that the table has, between measured ones too."""
    times = table.table.step_s * 1e3
    stats = {
        str(batch): {str(K): row[K] for K in np.flatnonzero(~np.isnan(row)).tolist()}
        for batch, row in zip(table.table.batches, times, strict=True)
    }
    document: dict[str, Any] = {"is_online": False, "max_num_speculative_tokens": times.shape[1] - 1}
    if table.survival is not None:
        document["acceptance_rate_per_pos"] = table.survival.survival.tolist()
    return json.dumps(document | {STATS_KEY: stats}) + "\n"


def chain_table_of(cost: StepCost, *, batches: Sequence[int], draft_tokens: Sequence[int], context: int) -> ChainTable:
    """A table of the chains of K drafts at each batch size, as a cost model prices them.

    Raises:
        InputError: a step that the cost model has no time for.
    """
    sizes, ks = (np.array(sorted(set(values)), dtype=np.int64) for values in (batches, draft_tokens))
    step_s = known_times(cost, sizes, ks + 1, context)
    cells = {(int(b), int(K)): float(step_s[i, j]) for i, b in enumerate(sizes) for j, K in enumerate(ks)}
    return ChainTable.from_cells(cells)
