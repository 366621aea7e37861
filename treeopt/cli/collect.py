"""`treeopt ranks collect`: run a target and a drafter over prompts and write down what the drafter guessed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treeopt.cli.command import CliOption
from treeopt.cli.options import Json, TargetModel

if TYPE_CHECKING:
    from treeopt.collect.parts import Collection


def collect(
    target: TargetModel,
    draft: Annotated[
        str,
        CliOption(
            help="ngram[:N], ngram:ENGINE:LOW-HIGH, early-exit:K, mtp, a drafter's folder, or a model as for --target."
        ),
    ],
    prompts: Annotated[Path, CliOption(help='JSONL: {"prompt": ...}, {"messages": [...]} or {"token_ids": [...]}.')],
    out: Annotated[Path, CliOption("--out", "-o", help="The trace, .npz.")],
    depth: Annotated[int, CliOption(help="D, how many tokens ahead the drafter guesses.")] = 6,
    ranks: Annotated[int, CliOption(help="Guesses that are told apart.")] = 32,
    max_new_tokens: Annotated[int, CliOption(help="The longest continuation of a prompt.")] = 128,
    temperature: Annotated[float, CliOption(help="0 for greedy decoding.")] = 0.0,
    rule: Annotated[
        str | None,
        CliOption(help="At a temperature: target-sample (default), recursive-rejection or block."),
    ] = None,
    seed: Annotated[int, CliOption(min=0, help="Of what is sampled.")] = 0,
    shard: Annotated[str, CliOption(help="I/N: this process takes every N-th document, from the I-th on.")] = "0/1",
    documents_per_part: Annotated[int, CliOption(help="Documents written at a time.")] = 8,
    ray: Annotated[
        str | None,
        CliOption(help="Address of a Ray cluster, auto, or local.", metavar="ADDRESS"),
    ] = None,
    workers: Annotated[int | None, CliOption(help="With --ray: actors; one per GPU, or per CPU.", min=1)] = None,
    device: Annotated[str, CliOption(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[str, CliOption(help="auto, float32, bfloat16 or float16.")] = "auto",
    json: Json = False,
) -> None:
    """Run a target and a drafter over prompts and record the rank of every token among the drafter's guesses.

    Run again after an interruption, it goes on with the documents that are missing.
    """
    from treeopt.cli import console
    from treeopt.cli.progress import progress
    from treeopt.collect.job import Collected, CollectJob, PromptShard, run
    from treeopt.collect.settings import CollectSettings
    from treeopt.render.collect import report

    settings = CollectSettings(
        target=target,
        draft=draft,
        depth=depth,
        ranks=ranks,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        rule=rule,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    job = CollectJob(
        settings=settings,
        prompts=prompts,
        out=out,
        shard=PromptShard.parse(shard),
        documents_per_part=documents_per_part,
    )
    with job.start() as collection:
        console.notes(collection.set_aside)
        with console.if_interrupted(lambda: _kept(collection)):
            with progress("collected", job.documents, "documents", total=job.documents) as advance:
                if ray is None:
                    run(job, collection, advance=lambda done: advance(done, done))
                else:
                    from treeopt.collect.ray_pool import run_on_ray

                    run_on_ray(job, collection, address=ray, workers=workers, advance=lambda done: advance(done, done))
            trace = collection.finish()
    console.report(Collected(path=job.out, rows=trace, job=job), json, report)
    console.wrote(job.out)


def _kept(collection: Collection) -> str:
    done = len(collection.parts) - len(collection.missing())
    return f"{collection.folder} keeps {done} of {len(collection.parts)} parts; the same command goes on with the rest"
