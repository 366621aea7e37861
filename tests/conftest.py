"""What holds for all tests in one process, and has to be decided before a library is first imported."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure; a check that others wait for draws the same cases each time.
settings.register_profile("treeopt", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("treeopt")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # cores are shared


def _has_gpu() -> bool:
    if find_spec("torch") is None or not any(Path("/dev").glob("nvidia[0-9]*")):
        return False
    import torch

    return torch.cuda.is_available()


# Triton reads the switch when it is imported: without a GPU its interpreter runs the kernels.
if not _has_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def device() -> str:
    """Where kernels run."""
    return "cuda" if _has_gpu() else "cpu"
