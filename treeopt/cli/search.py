"""`treeopt search`: the best tree per batch size, as a table and a plan file."""

from __future__ import annotations

from typing import Annotated

import typer

from treeopt.catalog import DEFAULT_RANKS
from treeopt.cli.options import Json, PlanOut, command_line, parse_batches


def search(
    batch: Annotated[int | None, typer.Option("--batch", help="One batch size.", show_default=False)] = None,
    batches: Annotated[
        str | None, typer.Option("--batches", help="Batch sizes: 1,2,4,8 or 1-256.", show_default=False)
    ] = None,
    ranks: Annotated[
        str, typer.Option(help="Rank profile or trace: a shipped name, a file, or a folder of shards.")
    ] = DEFAULT_RANKS,
    hardware: Annotated[str, typer.Option(help="Hardware profile: a shipped name or a file.")] = "h100-sxm",
    model: Annotated[str, typer.Option(help="Target: a shipped name, or a Hugging Face config.json.")] = "llama-3.1-8b",
    drafter: Annotated[str, typer.Option(help="eagle, medusa, mtp, ngram, or model:NAME.")] = "eagle",
    context: Annotated[int, typer.Option(help="Committed tokens per request, L.")] = 2048,
    objective: Annotated[str, typer.Option(help="throughput, or length (largest E within the budget).")] = "throughput",
    budget: Annotated[
        float | None,
        typer.Option(help="Cap on batch x nodes; for length the default is the hardware's ridge.", show_default=False),
    ] = None,
    max_nodes: Annotated[int, typer.Option(help="Cap on nodes per tree, root included.")] = 64,
    max_depth: Annotated[int | None, typer.Option(help="Cap on the depth.", show_default=False)] = None,
    max_children: Annotated[int | None, typer.Option(help="Cap on children per node.", show_default=False)] = None,
    max_ranks: Annotated[int | None, typer.Option(help="Guesses the drafter lists.", show_default=False)] = None,
    max_trees: Annotated[
        int | None, typer.Option(help="Cap on buckets, each with its own captured graph.", show_default=False)
    ] = None,
    sharing_loss: Annotated[
        float, typer.Option(help="Share of tokens/s that a batch size may lose by sharing a tree.")
    ] = 0.01,
    dtype: Annotated[str, typer.Option(help="Weights and arithmetic: bf16, fp16, fp8.")] = "bf16",
    tp: Annotated[int, typer.Option(help="Tensor-parallel GPUs.")] = 1,
    mix: Annotated[
        str | None,
        typer.Option(help="Several rank profiles by their share of drafts: a.npz=0.3,b.npz=0.7.", show_default=False),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="Share of the documents to keep out of the search and judge by.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap behind the intervals.")] = 0,
    out: PlanOut = None,
    json: Json = False,
) -> None:
    """Find the best draft tree for each batch size, or that none pays.

    A batch size in --batches answers for the sizes between the one before it and itself.
    """
    if (batch is None) == (batches is None):
        raise typer.BadParameter("give either --batch N or --batches LIST", param_hint="--batch")
    if mix is not None and (ranks != DEFAULT_RANKS or "=" not in mix):
        raise typer.BadParameter("give A=0.3,B=0.7, in place of --ranks", param_hint="--mix")
    from treeopt.buckets import Sharing
    from treeopt.cli import console
    from treeopt.documents import refuse_overwriting
    from treeopt.frontier import Limits
    from treeopt.inputs import Names, load_inputs
    from treeopt.planner import make_plan
    from treeopt.search import Question, parse_objective

    question = Question(
        batches=parse_batches(batches) if batches is not None else (batch or 0,),
        context=context,
        limits=Limits(max_nodes=max_nodes, max_depth=max_depth, max_children=max_children, max_ranks=max_ranks),
        objective=parse_objective(objective),
        budget_tokens=budget,
        sharing=Sharing(max_loss=sharing_loss, max_trees=max_trees),
    )
    names = Names(ranks=mix or ranks, hardware=hardware, model=model, drafter=drafter, dtype=dtype, tp=tp)
    with console.working("searching"):
        inputs = load_inputs(names)
        plan = make_plan(question, inputs, command=command_line(), seed=seed, held_out=holdout)
    if out is not None:
        refuse_overwriting(out, *inputs.files)
        plan.save(out)
    if json:
        typer.echo(plan.json())
    else:
        from treeopt.render import bucket_table, one_bucket, plan_heading

        one = len(plan.buckets) == 1
        console.result(plan_heading(plan), one_bucket(plan.buckets[0]) if one else bucket_table(plan, console.width()))
    console.notes(plan.notes)
    if out is not None:
        console.notes([f"wrote {out}"])
