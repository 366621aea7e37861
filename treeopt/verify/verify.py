"""Are a plan's trees verified as plain decoding would verify every path? And where does another engine go wrong?"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from treeopt.decode.rules import rule_named
from treeopt.errors import InputError
from treeopt.extras import require
from treeopt.tree import MAX_PREFIX, DraftTree
from treeopt.verify.diagnose import checkable, diagnose, remarks, unchecked
from treeopt.verify.dump_reading import load_dump
from treeopt.verify.report import Diagnosis, TreeReport, VerificationReport
from treeopt.verify.subjects import TreeSelection, VerifiedTree, only_subject, subjects_of

if TYPE_CHECKING:
    from treeopt.decode.models import CausalModel
    from treeopt.verify.case import Case

AttentionName = Literal["torch", "triton"]
DEVICES: Final = ("auto", "cpu", "cuda")
DTYPES: Final = ("auto", "float64", "float32", "bfloat16", "float16")
_KERNEL_HEAD_DIM: Final = 64  # the toy's, for a kernel that knows the head dimensions of real models only
_TOY_VOCABULARY: Final = 128
_DEFAULT_CONTEXT: Final = 16
_TOY_CONTEXT: Final = 2048
_MODEL_CONTEXT: Final = 1 << 17


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """How to verify.

    Args:
        model: a directory, .gguf file or hub id; None: a toy transformer with random weights.
        dtype: `auto` is float64 for the toy (float32 under a kernel), and the checkpoint's own for a model.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        context: committed tokens before each root; see `prefix_len`.

    Raises:
        InputError: one of them is unknown or out of range.
    """

    model: str | None = None
    attention: AttentionName = "torch"
    device: str = "auto"
    dtype: str = "auto"
    context: int = _DEFAULT_CONTEXT
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype '{self.dtype}'", hint=f"known: {', '.join(DTYPES)}")
        if self.device.partition(":")[0] not in DEVICES:
            raise InputError(f"device '{self.device}'", hint=f"known: {', '.join(DEVICES)}")
        if not 0 <= self.context <= MAX_PREFIX:
            raise InputError(f"a context of {self.context} tokens", hint=f"give 0 to {MAX_PREFIX}")
        if self.seed < 0:
            raise InputError(f"seed {self.seed}", hint="give 0 or more")

    @property
    def prefix_len(self) -> int:
        """L, what is run of the context: plain attention holds L x L scores."""
        return min(self.context, _TOY_CONTEXT if self.model is None else _MODEL_CONTEXT)


def verify_plan(
    path: Path, settings: VerifySettings, choice: TreeSelection, *, advance: Callable[[str], None] | None = None
) -> VerificationReport:
    """Check every different tree of a plan, as far as it is chosen, or a bare tree.

    Raises:
        InputError: a file or model cannot be read, or something that the attention needs is missing.
    """
    rule, subjects = subjects_of(path, choice)
    model = _load(settings)
    trees = []
    for subject in subjects:
        if advance is not None:
            advance(subject.where)
        trees.append(_report(_case(subject.tree, model, settings), subject))
    return VerificationReport(
        rule=None if rule is None else rule_named(rule).label,
        exact=rule is None or rule_named(rule).exact,
        model=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        device=_device_name(model),
        attention=_attention_name(settings, model),
        libraries=_libraries(settings),
        context=settings.prefix_len,
        trees=tuple(trees),
    )


def diagnose_dump(path: Path, dump: Path, choice: TreeSelection) -> Diagnosis:
    """Compare another engine's step with a plan's tree; needs neither a model nor torch.

    Raises:
        InputError: a file cannot be read, several trees are chosen, or the dump holds nothing that can be checked.
        FileFormatError: the dump is not what its format says.
    """
    subject = only_subject(path, choice)
    found = load_dump(dump, subject.tree, subject.dynamic)
    differences = diagnose(found, subject.tree, subject.dynamic)
    if not differences and not checkable(found):
        held = ", ".join(f"'{key}'" for key in found.contents) or "no arrays"
        raise InputError(
            f"{dump}: it holds {held}: nothing to check",
            hint="give the step's mask, positions, parents or accepted nodes, or the keys that docs/decoding.md lists",
        )
    return Diagnosis(
        where=subject.of_step,
        nodes=len(subject.tree) if subject.dynamic is None or found.nodes is None else found.nodes,
        contents=found.contents,
        unchecked=unchecked(found),
        differences=differences,
        remarks=remarks(found, subject.dynamic),
    )


def write_example(path: Path, out: Path, settings: VerifySettings, choice: TreeSelection) -> None:
    """Write a dump of this decoder's own step with a plan's tree.

    Raises:
        InputError: a file cannot be read or written, or several trees are chosen.
    """
    from treeopt.verify.case import own_dump

    subject = only_subject(path, choice)
    own_dump(_case(subject.tree, _load(settings), settings)).save(out)


def _load(settings: VerifySettings) -> CausalModel:
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
    if _without_torch(settings):
        return ToyTransformer(shape, seed=settings.seed, dtype=dtype, library="numpy")
    try:
        return ToyTransformer(
            shape, seed=settings.seed, dtype=dtype, device=device, attention=attention or masked_attention
        )
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).partition("\n")[0]
        raise InputError(f"device {device}: {reason}", hint="give --device cpu, or cuda where there is one") from error


def _without_torch(settings: VerifySettings) -> bool:
    """Whether numpy runs the toy: torch is not there, and nothing that was asked for needs it."""
    wanted = settings.model is None and settings.attention == "torch"
    wanted &= settings.device in ("auto", "cpu") and settings.dtype in ("auto", "float64", "float32")
    return wanted and importlib.util.find_spec("torch") is None


def _device(settings: VerifySettings) -> str:
    if settings.device != "auto":
        return settings.device
    if _without_torch(settings):
        return "cpu"
    return "cuda" if require("torch", extra="gpu").cuda.is_available() else "cpu"


def _case(tree: DraftTree, model: CausalModel, settings: VerifySettings) -> Case:
    from treeopt.verify.case import Case
    from treeopt.verify.checks import tokens_for

    rng = np.random.default_rng(settings.seed)
    prefix = rng.integers(0, model.vocabulary_size, settings.prefix_len)
    tokens = tokens_for(tree, model.vocabulary_size, rng)
    return Case(model=model, tree=tree, prefix=prefix, tokens=tokens, kernels=settings.attention == "triton")


def _report(case: Case, subject: VerifiedTree) -> TreeReport:
    from treeopt.verify.checks import check_tree

    return TreeReport(where=subject.where, nodes=len(subject.tree), depth=subject.tree.depth, checks=check_tree(case))


def _device_name(model: CausalModel) -> str:
    if getattr(model.device, "type", "cpu") != "cuda":
        return str(model.device)
    return f"{model.device} ({require('torch', extra='gpu').cuda.get_device_name(model.device)})"


def _attention_name(settings: VerifySettings, model: CausalModel) -> str:
    if settings.attention == "torch":
        return f"{'numpy' if _without_torch(settings) else 'torch'}, under the step mask"
    return "Triton kernel" if model.device.type == "cuda" else "Triton kernel, interpreted on the CPU"


def _libraries(settings: VerifySettings) -> tuple[str, ...]:
    if _without_torch(settings):
        return (f"numpy {np.__version__}",)
    names = ["torch", *(["triton"] if settings.attention == "triton" else [])]
    names += ["transformers"] if settings.model is not None else []
    return tuple(f"{name} {importlib.import_module(name).__version__}" for name in names)
