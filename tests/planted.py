"""Bugs planted in the kernels' own files, one line each, and a check of every address that kernels read or write."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from treeopt.kernels import attention, compaction, schedule, step

FOLDER = Path(attention.__file__).parent
# A file of jitted functions takes others along: those behind it hold what it defines.
JITTED = (
    "_tiles_triton",
    "_softmax_triton",
    "_merge_triton",
    "_attention_triton",
    "_step_triton",
    "_compaction_triton",
)


def broken(module: str, line: str, other: str, folder: Path) -> ModuleType:
    """A module of the kernels with one line replaced, under its own name."""
    source = (FOLDER / f"{module}.py").read_text()
    assert source.count(line) == 1, f"{line!r} is not in {module} once"
    path = folder / f"{module}.py"
    path.write_text(source.replace(line, other))
    return _loaded(module, path)


def _loaded(module: str, path: Path) -> ModuleType:
    name = f"treeopt.kernels.{module}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


def plant(module: str, line: str, other: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the kernels run with the bug until the patch is undone."""
    for name in (*JITTED, module):
        known = sys.modules.get(f"treeopt.kernels.{name}")
        if known is not None:
            patch.setitem(sys.modules, f"treeopt.kernels.{name}", known)
    if module in JITTED:
        fresh = {
            name: broken(name, line, other, folder) if name == module else _loaded(name, FOLDER / f"{name}.py")
            for name in JITTED[JITTED.index(module) :]
        }
        for host in (attention, step, schedule, compaction):
            real = host.jitted
            patch.setattr(host, "jitted", lambda name, real=real: fresh.get(name) or real(name))
        return
    found = broken(module, line, other, folder)
    for host in (attention, step, schedule, compaction):  # what others imported from it by name
        for name, value in vars(found).items():
            if getattr(value, "__module__", "") == found.__name__ and name in vars(host):
                patch.setattr(host, name, value)


@contextmanager
def within_bounds(tensors: Sequence[Any]) -> Iterator[None]:
    """Every address that the interpreter reads or writes lies in one of the tensors, or in one made meanwhile."""
    from triton.runtime import interpreter

    spans: list[tuple[int, int]] = []

    def known(tensor: torch.Tensor) -> torch.Tensor:
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel():
            spans.append((tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()))
        return tensor

    for tensor in tensors:
        known(tensor)

    class Checked:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def check(self, addresses: Any, mask: Any, size: int) -> None:
            at = np.broadcast_to(addresses, np.broadcast_shapes(addresses.shape, mask.shape))[
                np.broadcast_to(mask, np.broadcast_shapes(addresses.shape, mask.shape)).astype(bool)
            ].astype(np.int64)
            inside = np.zeros(at.shape, dtype=bool)
            for start, end in spans:
                inside |= (at >= start) & (at + size <= end)
            if not inside.all():
                raise IndexError(f"{int((~inside).sum())} of {at.size} addresses lie outside of every tensor")

        def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
            self.check(addresses, mask, np.dtype(dtype).itemsize)
            return self.real.load(addresses, mask, other, dtype)

        def store(self, addresses: Any, values: Any, mask: Any) -> Any:
            self.check(addresses, mask, values.dtype.itemsize)
            return self.real.store(addresses, values, mask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_interpreter", Checked(interpreter._interpreter))
        made: list[Any] = []  # kept, so that no address is given away twice
        for owner, name in ((torch, "empty"), (schedule, "entries_of")):
            real = getattr(owner, name)

            def noted(*arguments: Any, real: Any = real, **options: Any) -> Any:
                found = real(*arguments, **options)
                made.append(found)
                for tensor in found if isinstance(found, tuple) else (found,):
                    if tensor is not None:
                        known(tensor)
                return found

            patch.setattr(owner, name, noted)
        yield
