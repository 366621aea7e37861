"""Number formats: their bytes, and what stands beside them."""

from __future__ import annotations

import pytest

from treeopt.cost.formats import Dtype
from treeopt.errors import InputError

BYTES = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp8": 1,
    "fp8_static": 1,
    "fp8_block": 1 + 4 / 16384,
    "int8": 1,
    "int4": 0.5 + 2 / 128,
    "mxfp4": 0.5 + 1 / 32,
    "mxfp4_mxfp8": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}


def test_bytes_of_every_format() -> None:
    assert {str(dtype): dtype.bytes_per_value for dtype in Dtype} == BYTES


@pytest.mark.parametrize(
    ("name", "wide", "arithmetic"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp16", "fp16", "fp16"),
        ("fp32", "fp32", "fp32"),
        ("fp8", "bf16", "fp8"),
        ("fp8_block", "bf16", "fp8"),
        ("int4", "bf16", "bf16"),
        ("mxfp4", "bf16", "bf16"),
        ("mxfp4_mxfp8", "bf16", "fp8"),
        ("nvfp4", "bf16", "nvfp4"),
    ],
)
def test_what_stands_beside(name: str, wide: str, arithmetic: str) -> None:
    assert (Dtype(name).wide, Dtype(name).arithmetic) == (wide, arithmetic)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="unknown dtype 'fp64'") as caught:
        Dtype("fp64")
    assert "fp32" in caught.value.hint
