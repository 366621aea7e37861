"""`treeopt budget`: the node budget of trees that an engine builds by the drafter's confidence."""

from __future__ import annotations

from typing import Annotated, Final

from treeopt.cli.command import CliOption
from treeopt.cli.options import DRAFTERS, Dtype, Hardware, Json, KvDtype, Model, Tp, parse_batches
from treeopt.errors import InputError
from treeopt.planner.names import Names
from treeopt.solve.problem import DEFAULT_CONTEXT

_CONTEXTS: Final = f"{DEFAULT_CONTEXT}"


def budget(
    batches: Annotated[str, CliOption("--batches", "--batch", help="Batch sizes: 1,2,4,8 or 1-16.")],
    ranks: Annotated[
        str | None, CliOption(help="A trace with the drafter's probabilities (topk_prob): a shipped name or a file.")
    ] = None,
    lengths: Annotated[
        str | None, CliOption(help="Published acceptance lengths in place of a trace: 64=7.16,256=9.81.")
    ] = None,
    rule: Annotated[str, CliOption(help="How the engine builds its trees: ddtree, jetspec or opt-tree.")] = "ddtree",
    most: Annotated[int, CliOption(min=1, help="Largest budget, as the engine counts it.")] = 64,
    topk: Annotated[int | None, CliOption(min=1, help="Guesses per depth; by default all that were recorded.")] = None,
    build: Annotated[
        str | None,
        CliOption(help="One budget for all batch sizes, and its flags, of a build: sglang-pr-29907."),
    ] = None,
    hardware: Hardware = Names.hardware,
    model: Model = Names.model,
    drafter: Annotated[str, CliOption(help=DRAFTERS)] = "medusa",
    contexts: Annotated[
        str, CliOption(help="Committed tokens per request, L: 2048 or 1024,8192.")
    ] = f"{DEFAULT_CONTEXT}",
    dtype: Dtype = Names.dtype,
    kv_dtype: KvDtype = Names.kv_dtype,
    tp: Tp = Names.tp,
    seed: Annotated[int, CliOption(min=0, help="Seed of the intervals and of the simulated batches.")] = 0,
    json: Json = False,
) -> None:
    """The budget with the most tokens/s for each batch size, beside static trees, chains and adaptive chains."""
    from treeopt.acceptance.budget_tree import DDTREE, budget_rule
    from treeopt.cli import console
    from treeopt.cost import named_drafter
    from treeopt.engines.pull_requests import budget_build
    from treeopt.planner.budget import best_budgets
    from treeopt.planner.inputs import load_inputs
    from treeopt.render.budget import report

    asked, target = budget_rule(rule), None if build is None else budget_build(build)
    if target is not None and named_drafter(drafter).partition(":")[0] not in target.drafters:
        raise InputError(f"{target.name} runs no {drafter} drafter", hint=f"it runs {', '.join(target.drafters)}")
    names = Names(ranks=ranks, hardware=hardware, model=model, drafter=drafter, dtype=dtype, kv_dtype=kv_dtype, tp=tp)
    with console.working("valuing budgets"):
        found = best_budgets(
            load_inputs(names, confidence=lengths is None),
            asked,
            batches=parse_batches(batches),
            contexts=parse_batches(contexts, what="context", option="--contexts"),
            most=most,
            topk=topk,
            known=None if lengths is None else _known(lengths),
            one_for_all=target is not None,
            seed=seed,
        )
    console.report(found, json, report)
    if not json:
        console.notes(found.notes)
    if target is not None:
        console.notes([f"start: {target.flags(DDTREE.budget(found.rows[0].nodes))}", target.says])


def _known(text: str) -> dict[int, float]:
    """`64=7.16,256=9.81` as E by budget."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {int(budget): float(length) for budget, length in pairs}
    except ValueError:
        raise InputError(f"'{text}' is no list of lengths", hint="write --lengths 64=7.16,256=9.81") from None
