"""`treeopt verify`: the trees of a plan checked path by path, or another engine's step diagnosed."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treeopt.cli.options import Json

if TYPE_CHECKING:
    from treeopt.verify.verify import Diagnosis, VerificationReport

DIFFERENT = 3  # exit code


def verify(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan, a tree file, trees by batch size or a path list.")
    ],
    dump: Annotated[
        Path | None, typer.Option(help="Diagnose this step of another engine: NPZ or JSON.", show_default=False)
    ] = None,
    write_dump: Annotated[
        Path | None, typer.Option(help="Write a right step in that format, as an example.", show_default=False)
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Only the trees of this batch size.", show_default=False)] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model directory, .gguf file or hub id; without it a toy model.", show_default=False),
    ] = None,
    attention: Annotated[
        Literal["torch", "triton"], typer.Option(help="What computes the tree's attention.")
    ] = "torch",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float64, float32, bfloat16 or float16.")] = "auto",
    context: Annotated[
        int | None,
        typer.Option(help="Prefix length L (default 16), and which trees of a plan by context.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tokens, and of the toy's weights.")] = 0,
    json: Json = False,
) -> None:
    """Check every tree of a plan path by path against plain decoding; exit code 3 if something differs."""
    from treeopt.files.writing import refuse_overwriting
    from treeopt.verify.subjects import TreeSelection
    from treeopt.verify.verify import VerifySettings, diagnose_dump, verify_plan, write_example

    if dump is not None and write_dump is not None:
        raise typer.BadParameter("a dump is read or written, not both", param_hint="'--dump' / '--write-dump'")
    choice = TreeSelection(batch=batch, context=context)
    if dump is not None:
        _diagnosis(diagnose_dump(plan, dump, choice), json)
        return
    length = VerifySettings.context if context is None else context
    settings = VerifySettings(model=model, attention=attention, device=device, dtype=dtype, context=length, seed=seed)
    from treeopt.cli import console

    if write_dump is not None:
        refuse_overwriting(write_dump, plan)
        write_example(plan, write_dump, settings, choice)
        console.wrote(write_dump)
        return
    with console.working("verifying"):
        found = verify_plan(plan, settings, choice)
    _verification(found, json)


def _verification(found: VerificationReport, json: bool) -> None:
    if json:
        document = {"format": "treeopt.verification/1", "passed": found.passed, **asdict(found)}
        for tree, report in zip(document["trees"], found.trees, strict=True):
            for entry, check in zip(tree["checks"], report.checks, strict=True):
                entry["passed"] = check.passed
                entry["worst"], entry["allowed"] = _finite(check.worst), _finite(check.allowed)
        typer.echo(json_format.dumps(document, indent=2))
    else:
        from treeopt.cli import console
        from treeopt.render.verification import tree_table, verification_heading, verification_table

        console.result(
            verification_heading(found), "", tree_table(found), "", verification_table(found, console.width())
        )
        if not found.exact:
            console.notes([f"{found.rule}: what is checked is the step; the output does not follow the target's law"])
    if not found.passed:
        raise typer.Exit(DIFFERENT)


def _diagnosis(found: Diagnosis, json: bool) -> None:
    if json:
        document: dict[str, Any] = {
            "format": "treeopt.diagnosis/1",
            "tree": found.where,
            "nodes": found.nodes,
            "checked": [key for key in found.contents if key not in dict(found.unchecked)],
            "not_fully_checked": [key._asdict() for key in found.unchecked],
            "notes": list(found.remarks),
            "differences": [difference._asdict() for difference in found.differences],
        }
        typer.echo(json_format.dumps(document, indent=2))
    else:
        from treeopt.cli import console
        from treeopt.render.verification import diagnosis_table

        checked = f"{found.where}, {found.nodes} nodes; in the dump: {', '.join(found.contents) or 'nothing to check'}"
        console.result(checked, "")
        for key, needs in found.unchecked:
            console.notes([f"'{key}' was not fully checked: that needs {' and '.join(needs)} in the dump too"])
        console.notes(list(found.remarks))
        console.result(diagnosis_table(found) if found.differences else "no difference in what the dump holds")
    if found.differences:
        raise typer.Exit(DIFFERENT)


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
