"""`treeopt bench`: a plan decoded on this device, predicted against measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from treeopt.cli.command import CliOption
from treeopt.cli.options import Json, Out, PlanRanks, TargetModel, parse_batches

_RESULT: Final = "bench result"
_STEPS: Final = "file of step times"


def bench(
    target: TargetModel,
    draft: Annotated[
        str, CliOption(help="ngram[:N], ngram:ENGINE:LOW-HIGH, early-exit:K, or a model as for --target.")
    ],
    plan: Annotated[Path, CliOption(help="The plan to run.", metavar="PLAN")],
    batches: Annotated[str | None, CliOption(help="Batch sizes: 1,2,4; the plan's largest per bucket.")] = None,
    prompts: Annotated[Path | None, CliOption(help="JSONL, as for `ranks collect`; 16 built-in texts.")] = None,
    new_tokens: Annotated[int, CliOption(min=4, help="The longest continuation of a prompt.")] = 64,
    repeats: Annotated[int, CliOption(min=1, help="How often all of it is run.")] = 1,
    together: Annotated[
        bool, CliOption("--together", help="Run all batch sizes side by side: steadier, in the memory of all.")
    ] = False,
    rivals: Annotated[
        list[str] | None,
        CliOption("--with", metavar="RIVAL", help="Run this too: chain:K, a tree, a path list."),
    ] = None,
    device: Annotated[str, CliOption(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, CliOption(help="auto (the plan's), float32, bfloat16 or float16.")] = "auto",
    threads: Annotated[int | None, CliOption(min=1, help="With --device cpu: torch's threads.")] = None,
    clock: Annotated[
        Literal["wall", "cpu"], CliOption(help="cpu: seconds that one thread computes, on a shared machine.")
    ] = "wall",
    ranks: PlanRanks = None,
    seed: Annotated[int, CliOption(min=0, help="Of what is sampled and of the bootstrap.")] = 0,
    out: Out = None,
    steps_out: Annotated[
        Path | None,
        CliOption(help="Write the steps as CSV, for `profile fit --steps`."),
    ] = None,
    json: Json = False,
) -> None:
    """Decode prompts plainly, with the best chain and with the plan's tree; compare with what was predicted."""
    from treeopt.bench.plan import PlanBench
    from treeopt.bench.setup import BenchRequest
    from treeopt.bench.steps import fit_note, steps_csv
    from treeopt.cli import console
    from treeopt.files.typed import json_text, yaml_text
    from treeopt.files.writing import Output, check_all_writable, refuse_overwriting, write_files

    for path in (out, steps_out):
        refuse_overwriting(path, plan, *([prompts] if prompts else []))
    check_all_writable((out, _RESULT), (steps_out, _STEPS))
    from treeopt.render.bench import report

    request = BenchRequest(
        target=target,
        draft=draft,
        prompts=prompts,
        new_tokens=new_tokens,
        device=device,
        dtype=dtype,
        clock=clock,
        seed=seed,
    )
    job = PlanBench.of(
        plan,
        request,
        batches=parse_batches(batches) if batches is not None else None,
        rivals=rivals or [],
        repeats=repeats,
        together=together,
        threads=threads,
        ranks=ranks,
    )
    for path in (out, steps_out):
        refuse_overwriting(path, *job.inputs.files)
    with (
        console.if_interrupted(lambda: "nothing is kept, a bench is written when it is whole"),
        console.working("decoding"),
    ):
        found = job.run()
    outputs = []
    if out is not None:
        outputs.append(Output(out, (json_text if out.suffix == ".json" else yaml_text)(found), _RESULT))
    if steps_out is not None:
        outputs.append(Output(steps_out, steps_csv(found.cells), _STEPS))
    write_files(*outputs)
    console.report(found, json, report)
    console.notes(found.notes)
    console.wrote(out, steps_out)
    if steps_out is not None:
        console.notes([fit_note(found.cells, job.inputs, steps_out)])
