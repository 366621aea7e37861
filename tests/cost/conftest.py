"""What the cost tests share: the shipped profiles, and a GPU whose numbers are easy to reckon with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from treeopt.cost import Dtype, Hardware, ModelShape, load_hardware, load_model

PROFILES = Path(__file__).parents[2] / "profiles"


@pytest.fixture
def shipped_model() -> Callable[[str], ModelShape]:
    return lambda name: load_model(PROFILES / "models" / f"{name}.yaml")


@pytest.fixture
def shipped_hardware() -> Callable[[str], Hardware]:
    return lambda name: load_hardware(PROFILES / "hardware" / f"{name}.yaml")


@pytest.fixture
def round_gpu() -> Hardware:
    """1 TB/s, 200 TFLOP/s, 0.1 TB/s links, 1 us per launch: a bf16 ridge of 200 tokens."""
    return Hardware(
        name="round",
        device="none",
        source="measured",
        bandwidth_bytes_per_s=1e12,
        peak_flops={Dtype.BF16: 2e14, Dtype.FP8: 4e14},
        memory_bytes=1e11,
        link_bandwidth_bytes_per_s=1e11,
        launch_s=1e-6,
        sources={},
    )
