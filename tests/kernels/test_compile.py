"""Every shipped configuration compiled for real chips, without a GPU: what the interpreter cannot show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from treeopt.kernels.chip import CHIPS

OTHERS = {"small": "sm_80", "128": "sm_100", "192": "sm_86", "256": "sm_89", "latent": "sm_120", "float32": "gfx942"}
SCRIPT = Path(__file__).with_name("compile_kernels.py")
# All lines for three chips and every way to load, with float16 and the tree in the cache: minutes of two cores.
EVERY = ["--every"] if os.environ.get("TREEOPT_TEST_ALL_KERNELS") else []


def compiled(group: str) -> list[dict[str, Any]]:
    """In a process of its own, since this one interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, SCRIPT, group, *EVERY],
        capture_output=True,
        text=True,
        env=environment,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_fits(row: dict[str, Any]) -> None:
    # Where three programs share a multiprocessor, the masked steps that lead into a window take a few registers more. A
    # product by three TF32 ones holds 16 queries of 256 dimensions twice, which is all registers that a thread has; no
    # engine caches in float32.
    few = "window" in row["name"] or "256/256 fp32" in row["name"]
    assert row["spills"] <= 8 * few, row
    assert row["stack"] == 0 or row["spills"], row
    assert row["shared"] <= row["shared_limit"], row
    assert row["programs"] >= 1, row


@pytest.mark.parametrize("group", ["small", "128", "192", "256", "latent", "float32"])
def test_attention_keeps_to_registers_tensor_cores_and_wide_loads(group: str) -> None:
    rows = compiled(group)
    assert {row["arch"] for row in rows} == (set(CHIPS) if EVERY else {"sm_90", OTHERS[group]})
    for row in rows:
        assert_fits(row)
        assert row["products"], row
        assert row["shared"] <= row["shared_meant"] or "fp8" in row["name"], row
        if row["arch"].startswith("gfx"):
            continue
        assert row["merges_in_order"], row
        assert row["wide_loads"] >= row["wide_loads_needed"] > 0, row
        assert (row["descriptor_loads"] > 0) == (row["load"] == "tma"), row
        if row["arch"] == "sm_90":  # M of a warpgroup's product is 64
            assert ("HGMMA" in row["products"]) == (row["rows"] >= 64), row
            assert row["programs"] >= row["programs_meant"], row


def test_helpers_compile_and_compaction_waits_between_its_loads_and_its_stores() -> None:
    for row in compiled("helpers"):
        assert_fits(row)
        if row["name"].startswith("compaction") and not row["arch"].startswith("gfx"):
            assert row["wide_loads"] >= row["wide_loads_needed"] > 0, row
            assert row["waits"] == {".128": True, ".U8": True}, row
