"""What Triton's interpreter has to do as GPUs do, for errors to be those that a GPU makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="session")
def bfloat16_is_rounded() -> Iterator[None]:
    """The interpreter cuts the lower bits of float32 off; every GPU rounds to the nearest bfloat16, ties to even."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    language = pytest.importorskip("triton.language")
    real = interpreter._convert_float

    def converted(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (language.float32, language.bfloat16):
            return real(values, source, target, mode)
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(values), np.uint32(0x7FC0), nearest).astype(np.uint16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", converted)
        yield


@pytest.fixture(autouse=True, scope="session")
def a_launch_patches_triton_once() -> Iterator[None]:
    """The interpreter swaps all of `triton.language` at every call of a function, which is a third of its time."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    real, swapped = interpreter._patch_lang, set[str]()

    class Launch:
        def __init__(self, scope: Any) -> None:
            self.scope = scope

        def restore(self) -> None:
            swapped.clear()
            self.scope.restore()

    def once(function: Any) -> Any:
        if function.__module__ in swapped:
            return None
        is_launch = not swapped
        swapped.add(function.__module__)
        return Launch(real(function)) if is_launch else real(function)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", once)
        yield
