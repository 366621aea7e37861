"""Options that several commands share, and the values behind them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click

from treeopt.cli.command import Argument, CliOption
from treeopt.errors import InputError

if TYPE_CHECKING:
    from treeopt.files.shipped import ShippedKind

MAX_BATCHES = 4096


def shipped(kind: ShippedKind) -> Callable[[], list[str]]:
    """The shipped names of a kind, for a shell to complete."""

    def names() -> list[str]:
        from treeopt.files.shipped import shipped_names

        return shipped_names(kind)

    return names


def engines() -> list[str]:
    """The engines' names."""
    from treeopt.engines.registry import ENGINES

    return [engine.name for engine in ENGINES]


# What is planned for. The defaults are those of `treeopt.planner.inputs.Names` and
# `treeopt.solve.problem.DEFAULT_CONTEXT`.
DRAFTERS: Final = (
    "eagle, eagle3, medusa, mtp, dflash, dflash2, dspark, jetspec, peagle, ngram, suffix, model:NAME, pard:NAME, or "
    "the folder or config.json of a drafter."
)
Hardware = Annotated[str, CliOption(help="Hardware profile: a shipped name or a file.", names=shipped("hardware"))]
Model = Annotated[
    str, CliOption(help="Target: a shipped name, or a Hugging Face config.json or its folder.", names=shipped("models"))
]
Drafter = Annotated[str, CliOption(help=DRAFTERS)]
Dtype = Annotated[
    str | None,
    CliOption(
        help="Weights: bf16, fp16, fp8, fp8_tensor, fp8_static, fp8_block, int8, int4, mxfp4, mxfp4_mxfp8, nvfp4, or "
        "LAYERS/EXPERTS. By default what the model's config.json says, else bf16.",
    ),
]
KvDtype = Annotated[str | None, CliOption(help="KV cache: bf16, fp8. By default as the model says, else 16 bit.")]
Tp = Annotated[int, CliOption(help="Tensor-parallel GPUs.")]
Context = Annotated[int, CliOption(min=0, help="Committed tokens per request, L.")]

# What of a plan, and what it was made from.
PlanBatch = Annotated[int | None, CliOption(help="Which bucket of a plan.")]
PlanContext = Annotated[int | None, CliOption(help="Which context, where the plan has several.")]
PlanRanks = Annotated[str | None, CliOption(help="Where the plan's rank profile is now, if it moved.")]

# What an engine measured.
EvidenceKind = Annotated[str | None, CliOption(help="Force a kind of file instead of detecting it.")]
DraftTokens = Annotated[int | None, CliOption(help="K, for files that do not say how many tokens they drafted.")]

Drafted = Annotated[
    str | None,
    CliOption(
        metavar="DRAFT",
        help="What each step drafted, where the file does not say it: chain:K, or a tree as sglang:3,4,16.",
    ),
]

TargetModel = Annotated[str, CliOption(help="Target: a directory, a .gguf file or a hub id.", metavar="DIR_OR_ID")]
Json = Annotated[bool, CliOption("--json", help="Print one JSON document instead of tables.")]
AllNotes = Annotated[bool, CliOption("--notes", help="Show all notes, not only the first three.")]
Out = Annotated[Path | None, CliOption("--out", "-o", help="Write the file here.")]
PlanOut = Annotated[Path | None, CliOption("--out", "-o", help="Write the plan here.")]
Plot = Annotated[Path | None, CliOption(metavar="FILE", help="Also draw it: .svg, .png or .pdf (extra report).")]
PlanFile = Annotated[Path, Argument(metavar="PLAN", help="A plan file, as `treeopt search --out` writes it.")]


def parse_batches(text: str, *, what: str = "batch size", option: str = "--batches") -> tuple[int, ...]:
    """`1,2,4` or `1-256` or both mixed, to rising sizes; errors call one `what`, given by `option`.

    Raises:
        InputError: not numbers, a range that falls, or too many.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not _is_size(low) or (dash and not _is_size(high)):
            raise InputError(f"'{part.strip()}' is not a {what}", hint=f"write {option} 1,2,4,8 or {option} 1-256")
        first, last = int(low), int(high or low)
        if last < first:
            raise InputError(f"the range {part.strip()} falls", hint=f"write {last}-{first}")
        if last - first >= MAX_BATCHES:
            raise InputError(f"{last - first + 1} {what}s", hint=f"give at most {MAX_BATCHES} in a range")
        sizes.update(range(first, last + 1))
    return tuple(sorted(sizes))


def parse_captures(text: str | None) -> tuple[int, ...] | None:
    """The sizes of --capture-sizes; None where it is not given.

    Raises:
        InputError: see `parse_batches`.
    """
    return parse_batches(text, what="captured size", option="--capture-sizes") if text else None


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def command_line() -> str:
    """The command as the plan records it: without what only says where or how to print the answer."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word in ("--out", "-o", "--report"):
            next(words, None)
        elif word not in ("--json", "--notes") and not word.startswith(("--out=", "-o", "--report=")):
            kept.append(word)
    return shlex.join(["treeopt", *kept])


def refuse_given(context: click.Context, names: Collection[str], why: str) -> None:
    """Refuse options that were given although they would change nothing."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise click.BadParameter(why, param_hint=parameter.opts[0])
