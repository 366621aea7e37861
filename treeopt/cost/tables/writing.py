"""Step times as the table that an engine plans its drafts by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from treeopt.acceptance.model import PathModel, path_probabilities
from treeopt.acceptance.position import PositionSurvival
from treeopt.cost.step_cost import StepCost
from treeopt.cost.tables import sglang, vllm
from treeopt.errors import InputError, UnknownNameError
from treeopt.tree import DraftTree

TABLES: Final = ("vllm", "sglang", "sglang-additive")


class WrittenTable(NamedTuple):
    """The text of a table, and what is lost in it."""

    text: str
    notes: tuple[str, ...]


def write_table(
    kind: str,
    cost: StepCost,
    *,
    batches: Sequence[int],
    draft_tokens: Sequence[int],
    context: int,
    ranks: PathModel | None = None,
) -> WrittenTable:
    """The times of chains of K drafts at each batch size, as one of `TABLES`.

    Args:
        kind: whose table.
        cost: the price of a step.
        batches: batch sizes.
        draft_tokens: K; one for `sglang`, whose table knows tokens per step only.
        context: L.
        ranks: the acceptance that goes into vLLM's table, if any.

    Raises:
        UnknownNameError: no such table.
        InputError: a step that the cost has no time for, or too many or too few K for the table.
    """
    if kind == "vllm":
        table = vllm.chain_table_of(cost, batches=batches, draft_tokens=draft_tokens, context=context)
        survival = None if ranks is None else _survival(ranks, max(draft_tokens))
        return WrittenTable(vllm.vllm_table_json(vllm.VllmTable(table=table, survival=survival)), ())
    if kind == "sglang-additive":
        nodes = [K + 1 for K in draft_tokens]
        found = sglang.additive_table_of(cost, batches=batches, nodes=nodes, context=context)
        note = f"the sum of its parts misses single steps by up to {found.max_error:.1%}"
        return WrittenTable(sglang.additive_table_json(found.table), (note,))
    if kind != "sglang":
        raise UnknownNameError("table", kind, TABLES)
    if len(draft_tokens) != 1:
        raise InputError("SGLang's table knows tokens per step only", hint="give one K, or take sglang-additive")
    tokens = sglang.token_table_of(cost, batches=batches, nodes=draft_tokens[0] + 1, context=context)
    return WrittenTable(sglang.token_table_json(tokens), ())


def _survival(ranks: PathModel, draft_tokens: int) -> PositionSurvival | None:
    depth = min(draft_tokens, ranks.depth)
    if depth == 0:
        return None
    return PositionSurvival(survival=np.minimum.accumulate(path_probabilities(ranks, DraftTree.chain(depth))[1:]))
