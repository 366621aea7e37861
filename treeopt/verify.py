"""Are a plan's trees verified as plain decoding would verify every path? And where does another engine go wrong?"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from treeopt.decode.diagnose import Difference, diagnose
from treeopt.decode.dump import load_dump
from treeopt.decode.rules import rule_named
from treeopt.documents import read_document
from treeopt.errors import InputError
from treeopt.extras import require
from treeopt.plan_file import is_plan, parse_plan, parse_tree
from treeopt.tree import DraftTree

if TYPE_CHECKING:
    from treeopt.decode.checks.case import Case
    from treeopt.decode.checks.checks import Check
    from treeopt.decode.models import Model
    from treeopt.plan_bucket import Bucket

AttentionName = Literal["torch", "triton"]
DTYPES: Final = ("auto", "float64", "float32", "bfloat16", "float16")
_KERNEL_HEAD_DIM: Final = 64  # the toy's, for a kernel that knows the head dimensions of real models only
_TOY_VOCABULARY: Final = 128


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to verify.

    Args:
        model: a directory, .gguf file or hub id; None: a toy transformer with random weights.
        dtype: `auto` is float64 for the toy (float32 under a kernel), and the checkpoint's own for a model.
        context: L, the committed tokens before each root.
    """

    model: str | None = None
    attention: AttentionName = "torch"
    device: str = "auto"
    dtype: str = "auto"
    context: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype '{self.dtype}'", hint=f"known: {', '.join(DTYPES)}")
        if not 1 <= self.context <= 1 << 20:
            raise InputError(f"a context of {self.context} tokens", hint="give 1 or more")


@dataclass(frozen=True, kw_only=True)
class TreeReport:
    """The checks of one tree; `where` names the buckets that share it."""

    where: str
    nodes: int
    depth: int
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was verified, with what, and what came out.

    Args:
        rule: the plan's rule, with its being approximate; None for a bare tree.
        attention: the implementation that ran, with its version.
        libraries: names and versions.
    """

    rule: str | None
    exact: bool
    model: str
    dtype: str
    device: str
    attention: str
    libraries: tuple[str, ...]
    context: int
    trees: tuple[TreeReport, ...]

    @property
    def passed(self) -> bool:
        """Whether every check of every tree did."""
        return all(check.passed for tree in self.trees for check in tree.checks)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a dump of another engine's step shows: the keys that it held, and the differences, the earliest first."""

    where: str
    nodes: int
    contents: tuple[str, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True)
class _Subject:
    tree: DraftTree
    where: str


def verify_plan(
    path: Path, settings: Settings, *, batch: int | None = None, advance: Callable[[str], None] | None = None
) -> Verification:
    """Check every different tree of a plan (or that of one batch size), or a bare tree.

    Raises:
        InputError: a file or model cannot be read, or something that the attention needs is missing.
    """
    rule, subjects = _subjects(path, batch)
    model = _load(settings)
    trees = []
    for subject in subjects:
        if advance is not None:
            advance(subject.where)
        trees.append(_report(_case(subject.tree, model, settings), subject))
    return Verification(
        rule=None if rule is None else rule_named(rule).label,
        exact=rule is None or rule_named(rule).exact,
        model=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        device=_device_name(model),
        attention=_attention_name(settings, model),
        libraries=_libraries(settings),
        context=settings.context,
        trees=tuple(trees),
    )


def diagnose_dump(path: Path, dump: Path, *, batch: int | None = None) -> Diagnosis:
    """Compare another engine's step with a plan's tree; needs neither a model nor torch.

    Raises:
        InputError: a file cannot be read, or the plan has several trees and no batch size picks one.
        FileFormatError: the dump is not what its format says.
    """
    subject = _only(path, batch)
    found = load_dump(dump, subject.tree)
    return Diagnosis(
        where=subject.where,
        nodes=len(subject.tree),
        contents=found.contents,
        differences=diagnose(found, subject.tree),
    )


def write_example(path: Path, out: Path, settings: Settings, *, batch: int | None = None) -> None:
    """Write a dump of this decoder's own step with a plan's tree.

    Raises:
        InputError: a file cannot be read or written, or the plan has several trees and no batch size picks one.
    """
    from treeopt.decode.checks.own import own_dump

    subject = _only(path, batch)
    own_dump(_case(subject.tree, _load(settings), settings)).save(out)


def _only(path: Path, batch: int | None) -> _Subject:
    _, subjects = _subjects(path, batch)
    if len(subjects) > 1:
        raise InputError(f"{path}: the plan has {len(subjects)} trees", hint="say which: add --batch B")
    return subjects[0]


def _subjects(path: Path, batch: int | None) -> tuple[str | None, list[_Subject]]:
    document = read_document(path, what="plan or tree")
    if not is_plan(document):
        if batch is not None:
            raise InputError("a bare tree has no batch sizes", hint="drop --batch, or give a plan")
        return None, [_Subject(tree=parse_tree(document), where="the tree")]
    plan = parse_plan(document)
    buckets = plan.buckets if batch is None else (plan.bucket_for(batch),)
    return plan.rule, [
        _Subject(tree=tree, where=_where(b for b in buckets if b.tree == tree))
        for tree in dict.fromkeys(bucket.tree for bucket in buckets)
    ]


def _where(buckets: Iterable[Bucket]) -> str:
    ranges = dict.fromkeys((b.batch_min, b.batch_max) for b in buckets)
    return "batch " + ", ".join(str(high) if low == high else f"{low}-{high}" for low, high in ranges)


def _load(settings: Settings) -> Model:
    require("torch", extra="gpu")
    from treeopt.decode.attention import kernel_attention, masked_attention

    kernel = settings.attention == "triton"
    device = _device(settings)
    if kernel and device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported; there is no other way on a CPU
    attention = kernel_attention() if kernel else None
    if settings.model is not None:
        from treeopt.decode.hf import HuggingFaceModel

        return HuggingFaceModel.load(settings.model, device=device, dtype=settings.dtype, attention=attention)
    from treeopt.decode.toy import ToyShape, ToyTransformer

    shape = ToyShape(vocabulary=_TOY_VOCABULARY, head_dim=_KERNEL_HEAD_DIM if kernel else ToyShape.head_dim)
    dtype = ("float32" if kernel else "float64") if settings.dtype == "auto" else settings.dtype
    try:
        return ToyTransformer(
            shape, seed=settings.seed, dtype=dtype, device=device, attention=attention or masked_attention
        )
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).partition("\n")[0]
        raise InputError(f"device {device}: {reason}", hint="give --device cpu, or cuda where there is one") from error


def _device(settings: Settings) -> str:
    if settings.device != "auto":
        return settings.device
    return "cuda" if require("torch", extra="gpu").cuda.is_available() else "cpu"


def _case(tree: DraftTree, model: Model, settings: Settings) -> Case:
    from treeopt.decode.checks.case import Case
    from treeopt.decode.checks.checks import tokens_for

    rng = np.random.default_rng(settings.seed)
    prefix = rng.integers(0, model.vocabulary_size, settings.context)
    tokens = tokens_for(tree, model.vocabulary_size, rng)
    return Case(model=model, tree=tree, prefix=prefix, tokens=tokens, kernels=settings.attention == "triton")


def _report(case: Case, subject: _Subject) -> TreeReport:
    from treeopt.decode.checks.checks import check_tree

    return TreeReport(where=subject.where, nodes=len(subject.tree), depth=subject.tree.depth, checks=check_tree(case))


def _device_name(model: Model) -> str:
    if model.device.type != "cuda":
        return str(model.device)
    return f"{model.device} ({require('torch', extra='gpu').cuda.get_device_name(model.device)})"


def _attention_name(settings: Settings, model: Model) -> str:
    if settings.attention == "torch":
        return "torch, under the step mask"
    return "Triton kernel" if model.device.type == "cuda" else "Triton kernel, interpreted on the CPU"


def _libraries(settings: Settings) -> tuple[str, ...]:
    names = ["torch", *(["triton"] if settings.attention == "triton" else [])]
    names += ["transformers"] if settings.model is not None else []
    return tuple(f"{name} {importlib.import_module(name).__version__}" for name in names)
