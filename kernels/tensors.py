"""torch and Triton, imported here only, and the checks of tensors that every kernel makes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

from treeopt.errors import InputError
from treeopt.extras import require

torch: Any = require("torch", extra="gpu")
Tensor: TypeAlias = Any  # torch.Tensor: torch is optional, also for type checkers
Impl = Literal["auto", "triton", "torch"]
Taken = Literal["triton", "torch"]


def wrong(argument: str, problem: str, *, hint: str) -> InputError:
    """The error of an argument that a kernel cannot take."""
    return InputError(f"argument {argument}: {problem}", hint=hint)


def jitted(module: str) -> Any:
    """A file of Triton kernels in this package; imported at the first launch, since Triton is optional.

    Raises:
        InputError: Triton is not installed.
    """
    require("triton", extra="gpu")
    return importlib.import_module(f"treeopt.kernels.{module}")


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter (`TRITON_INTERPRET=1` when it was imported)."""
    return bool(require("triton", extra="gpu").knobs.runtime.interpret)


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """The tensor's device as the current one: Triton launches on the current device, wherever the tensors are."""
    if not tensor.is_cuda:
        return nullcontext()
    current: AbstractContextManager[object] = torch.cuda.device(tensor.device)
    return current


def choose(impl: Impl, tensor: Tensor) -> Taken:
    """What runs: "auto" is Triton for CUDA tensors where Triton is installed, plain torch otherwise.

    Raises:
        InputError: an unknown `impl`; "triton" without Triton, or on a CPU without its interpreter.
    """
    if impl not in ("auto", "triton", "torch"):
        raise wrong("impl", f"{impl!r} is not known", hint="take auto, triton or torch")
    if impl == "torch":
        return "torch"
    if impl == "auto":
        return "triton" if tensor.is_cuda and importlib.util.find_spec("triton") else "torch"
    if not tensor.is_cuda and not interpreting():
        raise wrong(
            "impl",
            f"'triton' needs CUDA tensors, these are on {tensor.device}",
            hint="move the tensors to the GPU, take impl='torch', or set TRITON_INTERPRET=1 before Triton is imported",
        )
    return "triton"


def check_tensor(
    name: str,
    tensor: Tensor,
    *,
    shape: Sequence[int | str],
    dtype: Any,
    like: Tensor,
    dense: bool = False,
) -> None:
    """Check one tensor argument; letters in `shape` stand for sizes that are free.

    Raises:
        InputError: not a tensor, or another shape, dtype or device, or an innermost dimension that is not dense.
    """
    if not isinstance(tensor, torch.Tensor):
        raise wrong(name, f"{type(tensor).__name__} is not a tensor", hint="give a torch tensor")
    want = ", ".join(map(str, shape))
    pairs = zip(shape, tensor.shape, strict=False)
    fits = tensor.dim() == len(shape) and all(isinstance(size, str) or size == found for size, found in pairs)
    if not fits:
        raise wrong(name, f"its shape is {list(tensor.shape)}", hint=f"it has to be [{want}]")
    if tensor.dtype != dtype:
        raise wrong(name, f"its dtype is {tensor.dtype}", hint=f"it has to be {dtype}")
    if tensor.device != like.device:
        raise wrong(name, f"it is on {tensor.device}", hint=f"the others are on {like.device}")
    if dense and not tensor.is_contiguous():
        raise wrong(name, f"its strides are {list(tensor.stride())}", hint="it has to be contiguous")
    if not dense and tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise wrong(name, f"the stride of its last dimension is {tensor.stride(-1)}", hint="it has to be 1")
