"""`treeopt search` as a function: a whole question in, the plan out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from treeopt.cost.step_cost import StepCost
from treeopt.files.shipped import hardware_for
from treeopt.plan.plan import Plan
from treeopt.planner.inputs import load_inputs
from treeopt.planner.make import make_plan
from treeopt.planner.names import Names
from treeopt.planner.weights_input import load_weights
from treeopt.solve.buckets import Sharing
from treeopt.solve.problem import DEFAULT_CONTEXT, Limits, Problem, parse_objective
from treeopt.solve.time_limit import OUTPUT_TOKENS, TimeLimit


def search(
    batches: int | Iterable[int] = (),
    *,
    ranks: str | None = None,
    hardware: str = Names.hardware,
    model: str = Names.model,
    drafter: str | None = None,
    cost: str | StepCost | None = None,
    context: int | Iterable[int] = DEFAULT_CONTEXT,
    engine: str | None = None,
    allow_off: bool = False,
    objective: str = "throughput",
    budget: float | None = None,
    max_tpot_ms: float | None = None,
    max_p99_tpot_ms: float | None = None,
    output_tokens: int = OUTPUT_TOKENS,
    max_nodes: int = Limits.max_nodes,
    max_depth: int | None = None,
    max_children: int | None = None,
    max_ranks: int | None = None,
    max_trees: int | None = None,
    sharing_loss: float | None = None,
    only_listed: bool = False,
    traffic: str | Mapping[int, float] | None = None,
    holdout: float | None = None,
    seed: int = 0,
    command: str | None = None,
    **inputs: Any,
) -> Plan:
    """The best draft for each batch size, or that none pays: what the command `treeopt search` gives.

    Args:
        batches: one batch size or several; each answers for those above the previous one. Those of `traffic` are added.
        ranks: the acceptance: a shipped name, a file, or a mixture such as `code.npz=0.3,chat.npz=0.7`.
        hardware: a shipped name or a file.
        model: a shipped name or a `config.json`.
        drafter: a kind (`eagle3`, `dflash`, ...), `model:NAME`, or a drafter's folder or config.json; default
            `eagle`, or what the engine runs.
        cost: step times in place of the hardware's kernels: a file, or an object of your own (`StepCost`).
        context: committed tokens per request; several give every range of contexts its own buckets.
        engine: search only what this one can load, `NAME` or `NAME==VERSION`.
        allow_off: with an engine, draft nothing where that is faster.
        objective: `throughput`, or `length` for the largest acceptance length within the budget.
        budget: cap on batch x nodes.
        max_tpot_ms: cap on a request's mean time per token in milliseconds.
        max_p99_tpot_ms: cap on the time per token that 99 % of requests stay within.
        output_tokens: tokens per request that the 99 % are counted over.
        max_nodes: cap on nodes per tree, the root included.
        max_depth: cap on the depth.
        max_children: cap on children per node.
        max_ranks: guesses that the drafter lists.
        max_trees: cap on buckets.
        sharing_loss: share of tokens/s that a batch size may lose so that fewer ranges change; default: what acceptance
            and price cannot tell, 2 % at most.
        only_listed: ask no batch sizes between those listed.
        traffic: how often so many requests run: `{1: 0.1, 8: 0.9}`, `1=0.1,8=0.9`, or a file (see `load_weights`). One
            draft for all is then the one that gives the most tokens/s over these weights.
        holdout: share of the documents to keep out of the search and judge by.
        seed: of the bootstrap behind the intervals.
        command: what the plan records as its origin; default: this call.
        **inputs: further fields of `treeopt.planner.names.Names`: `dtype`, `tp`, `capture_limit`, `temperature`, ...

    Raises:
        InputError: an unknown name, a file that cannot be read, or a number out of range.
        SearchError: the limits leave nothing that the engine can load.
    """
    weights = () if traffic is None else load_weights(traffic)
    asked = (batches,) if isinstance(batches, int) else tuple(batches)
    if weights:
        asked = tuple(sorted({*asked, *(weight.batch for weight in weights)}))
    contexts = (context,) if isinstance(context, int) else tuple(context)
    question = Problem(
        batches=asked,
        context=contexts[0] if contexts else DEFAULT_CONTEXT,
        limits=Limits(max_nodes=max_nodes, max_depth=max_depth, max_children=max_children, max_ranks=max_ranks),
        objective=parse_objective(objective),
        budget_tokens=budget,
        time_limit=TimeLimit(
            max_mean_s=_seconds(max_tpot_ms), max_p99_s=_seconds(max_p99_tpot_ms), output_tokens=output_tokens
        ),
        sharing=Sharing(max_loss=sharing_loss, max_trees=max_trees),
        only_listed=only_listed,
        weights=weights,
    )
    question.over(contexts)  # says what is wrong with them before anything is loaded
    target = None
    if engine is not None:
        from treeopt.planner.for_engine import Target  # imports all engines

        target = Target.find(engine, allow_off=allow_off, drafter=drafter)
        hardware = hardware_for(hardware, target.engine.engine.name)
    usual = Names.drafter if target is None else target.drafter
    names = Names(ranks=ranks, hardware=hardware, model=model, drafter=drafter or usual, cost=cost, **inputs)
    return make_plan(
        question,
        load_inputs(names, confidence=target is not None and target.has_triples),
        command=command or f"treeopt.search({asked if len(asked) > 1 else asked[0]}, ...)",
        contexts=contexts if len(contexts) > 1 else (),
        seed=seed,
        held_out=holdout,
        target=target,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0
