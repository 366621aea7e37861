"""Kernels run on the GPU where there is one, else in Triton's interpreter, which has to be chosen before its import."""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    torch.set_num_threads(1)


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
