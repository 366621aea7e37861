"""What prices the steps of a search: kernels, a table of measured steps, or a cost of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from treeopt.acceptance.model import expected_tokens, path_probabilities
from treeopt.acceptance.traffic import Traffic
from treeopt.cost import ModelStep
from treeopt.cost.step_cost import StepCost
from treeopt.plan.sources import CostSource
from treeopt.planner.names import Names
from treeopt.tree import DraftTree

if TYPE_CHECKING:
    from treeopt.cost.tables.loading import CostTable


class Priced(NamedTuple):
    """What prices the step, and where it is from if that is not the hardware's kernels."""

    cost: StepCost
    source: CostSource | None = None
    findings: tuple[str, ...] = ()


def priced_by(
    cost: Any,
    kernels: ModelStep,
    evidence: Traffic,
    names: Names,
    no_price: str | None,
) -> Priced:
    """Of a table (`CostTable`), a cost of the caller's own, or neither."""
    if cost is None:
        return Priced(kernels)
    if not hasattr(cost, "at_lengths"):
        return Priced(cost, CostSource(name=type(cost).__name__, sha256=""))
    table = cost.at_lengths(_chain_lengths(evidence))
    source = CostSource(name=table.name, file=str(names.cost), sha256=table.sha256)
    findings = table.findings
    if no_price is not None:
        findings = (*findings, f"the model has no price ({no_price}): only what the table reaches is known")
    from treeopt.cost.step_table import TreeTable  # only tables need it

    # Nobody's table is carried on by a model and a GPU that were not named.
    carried = names.prices_steps and no_price is None and not isinstance(table.table, TreeTable)
    return Priced(table.step(carried_by=kernels if carried else None), source, findings)


def cost_table(name: str) -> CostTable:
    """The table of a file.

    Raises:
        InputError: it cannot be read as one.
    """
    from treeopt.cost.tables.loading import load_cost_table  # imports all readers of step times

    return load_cost_table(Path(name))


def _chain_lengths(evidence: Traffic) -> Callable[[int], float]:
    """Tokens per step of chains of K drafts."""
    models = [(part.weight, part.profile.model()) for part in evidence.parts]

    def tokens_per_step(K: int) -> float:
        chain = DraftTree.chain(K)
        return sum(weight * expected_tokens(path_probabilities(model, chain)) for weight, model in models)

    return tokens_per_step
