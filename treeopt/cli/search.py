"""`treeopt search`: the best tree per batch size, as a table and a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from treeopt.cli.command import CliOption
from treeopt.cli.options import (
    DRAFTERS,
    AllNotes,
    Dtype,
    Hardware,
    Json,
    KvDtype,
    Model,
    PlanOut,
    Tp,
    command_line,
    engines,
    parse_batches,
    parse_captures,
    shipped,
)
from treeopt.errors import InputError
from treeopt.planner.names import Names
from treeopt.solve.problem import DEFAULT_CONTEXT


def search(
    batch: Annotated[int | None, CliOption("--batch", help="One batch size.")] = None,
    batches: Annotated[str | None, CliOption("--batches", help="Batch sizes: 1,2,4,8 or 1-256.")] = None,
    ranks: Annotated[
        str | None,
        CliOption(
            help="Rank profile or trace: a shipped name, a file, or a folder of shards. "
            "[default: what is published of --model and --drafter, else a demonstration]",
            names=shipped("ranks"),
        ),
    ] = None,
    hardware: Hardware = Names.hardware,
    model: Model = Names.model,
    drafter: Annotated[
        str | None,
        CliOption(
            help=f"{DRAFTERS} [default: {Names.drafter}, or what --engine runs]",
        ),
    ] = None,
    context: Annotated[
        int | None,
        CliOption(help=f"Committed tokens per request, L. [default: {DEFAULT_CONTEXT}]"),
    ] = None,
    contexts: Annotated[
        str | None,
        CliOption("--contexts", help="Several contexts, each with its own buckets: 1024,8192."),
    ] = None,
    objective: Annotated[str, CliOption(help="throughput, or length (largest E within the budget).")] = "throughput",
    budget: Annotated[
        float | None,
        CliOption(help="Cap on batch x nodes; for length the default is the hardware's ridge."),
    ] = None,
    max_tpot_ms: Annotated[
        float | None,
        CliOption(help="Cap on a request's mean time per token, in milliseconds."),
    ] = None,
    max_p99_tpot_ms: Annotated[
        float | None,
        CliOption(help="Cap on the time per token that 99 % of requests stay within."),
    ] = None,
    output_tokens: Annotated[int, CliOption(help="Tokens per answer, which the 99 % are counted over.")] = 256,
    prompt_tokens: Annotated[
        int | None,
        CliOption(help="Tokens per prompt: say what waiting for the prompts of others leaves of the speedup."),
    ] = None,
    chunk_tokens: Annotated[int | None, CliOption(help="Of a prompt, the most in one step; default 8192.")] = None,
    max_nodes: Annotated[int, CliOption(help="Cap on nodes per tree, root included.")] = 64,
    max_depth: Annotated[int | None, CliOption(help="Cap on the depth.")] = None,
    max_children: Annotated[int | None, CliOption(help="Cap on children per node.")] = None,
    max_ranks: Annotated[int | None, CliOption(help="Guesses the drafter lists.")] = None,
    max_trees: Annotated[int | None, CliOption(help="Cap on buckets, each with its own captured graph.")] = None,
    sharing_loss: Annotated[
        float | None,
        CliOption(
            help="Share of tokens/s that a batch size may lose so that fewer ranges change. [default: what acceptance "
            "and price cannot tell, 2 % at most]",
        ),
    ] = None,
    only_listed: Annotated[bool, CliOption("--only-listed", help="Ask no batch sizes between those listed.")] = False,
    traffic: Annotated[
        str | None,
        CliOption(
            metavar="WEIGHTS",
            help="How often so many requests run: 1=0.1,8=0.3,32=0.6, a CSV running,weight, or a server's log or "
            "/metrics. An engine with one setting gets what gives most tokens/s over these.",
        ),
    ] = None,
    dtype: Dtype = Names.dtype,
    tp: Tp = Names.tp,
    kv_dtype: KvDtype = None,
    capture_sizes: Annotated[
        str | None,
        CliOption(metavar="TOKENS,...", help="Tokens per step that graphs are captured for: 1,2,4,8."),
    ] = None,
    capture_limit: Annotated[
        int | None,
        CliOption(metavar="TOKENS", help="Largest captured step; longer ones run eagerly."),
    ] = None,
    expert_skew: Annotated[float | None, CliOption(help="How skewed routing is: 0 balanced, 1.2 heavily.")] = None,
    expert_correlation: Annotated[
        float | None,
        CliOption(help="Share of its experts that a token takes over from the one before it."),
    ] = None,
    mix: Annotated[
        str | None,
        CliOption(help="Several rank profiles by their share of drafts: a.npz=0.3,b.npz=0.7."),
    ] = None,
    holdout: Annotated[
        float | None,
        CliOption(help="Share of the documents to keep out of the search and judge by."),
    ] = None,
    temperature: Annotated[
        float | None,
        CliOption(help="Temperature that will be served, where the ranks may be of another."),
    ] = None,
    rule: Annotated[
        str | None,
        CliOption(help="Acceptance rule that will be served, where the ranks may be of another."),
    ] = None,
    cost: Annotated[
        str | None,
        CliOption(
            metavar="FILE",
            help="Step times in place of the kernel model: SGLang's or vLLM's table, or served rows.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        CliOption(
            metavar="NAME[==VERSION]",
            help="Search only what this engine can load, and tell what that costs.",
            names=engines,
        ),
    ] = None,
    allow_off: Annotated[
        bool, CliOption("--allow-off", help="With --engine: draft nothing where that is faster.")
    ] = False,
    seed: Annotated[int, CliOption(min=0, help="Seed of the bootstrap behind the intervals.")] = 0,
    notes: AllNotes = False,
    out: PlanOut = None,
    page: Annotated[
        Path | None,
        CliOption("--report", metavar="FILE", help="Write the plan as a page to look at (extra report)."),
    ] = None,
    json: Json = False,
) -> None:
    """Find the best draft tree for each batch size, or that none pays.

    A batch size in --batches answers for the sizes between the one before it and itself, and so do --contexts.
    """
    asked = (batch is not None) + (batches is not None)
    if asked > 1 or (asked == 0 and traffic is None):
        raise click.BadParameter("give either --batch N or --batches LIST", param_hint="--batch")
    if context is not None and contexts is not None:
        raise click.BadParameter("give either --context L or --contexts LIST", param_hint="--context")
    if mix is not None and (ranks is not None or "=" not in mix):
        raise click.BadParameter("give A=0.3,B=0.7, in place of --ranks", param_hint="--mix")
    if allow_off and engine is None:
        raise click.BadParameter("without --engine drafting nothing is always allowed", param_hint="--allow-off")
    from treeopt.cli import console
    from treeopt.planner.names import SEARCHED_WITHIN
    from treeopt.planner.search import search as run
    from treeopt.render.search import report

    if page is not None:
        from treeopt.cli.report import ready_to_write, write_page

        ready_to_write(page)
    with console.working("searching"):
        plan = run(
            parse_batches(batches) if batches is not None else () if batch is None else batch,
            ranks=mix or ranks,
            hardware=hardware,
            model=model,
            drafter=drafter,
            cost=cost,
            context=_contexts(contexts) or (DEFAULT_CONTEXT if context is None else context),
            engine=engine,
            allow_off=allow_off,
            objective=objective,
            budget=budget,
            max_tpot_ms=max_tpot_ms,
            max_p99_tpot_ms=max_p99_tpot_ms,
            output_tokens=output_tokens,
            prompt_tokens=prompt_tokens,
            chunk_tokens=chunk_tokens,
            max_nodes=max_nodes,
            max_depth=max_depth,
            max_children=max_children,
            max_ranks=max_ranks,
            max_trees=max_trees,
            sharing_loss=sharing_loss,
            only_listed=only_listed,
            traffic=traffic,
            holdout=holdout,
            seed=seed,
            command=command_line(),
            dtype=dtype,
            tp=tp,
            kv_dtype=kv_dtype,
            capture_tokens=parse_captures(capture_sizes),
            capture_limit=capture_limit,
            expert_skew=expert_skew,
            expert_correlation=expert_correlation,
            temperature=temperature,
            rule=rule,
        )
    if out is not None:
        plan.save(out)
    standing = (f"{plan.sources.hardware.name}: ", SEARCHED_WITHIN)
    console.answer(plan, json, report, plan.notes, all_notes=notes, standing=standing)
    if page is not None:
        write_page(plan, page)
    console.wrote(out, page)


def _contexts(text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or len(part) > 10:
            raise InputError(f"'{part}' is not a context", hint="write --contexts 1024,8192,32768")
    return tuple(map(int, parts))
