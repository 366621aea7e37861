"""Opt-in (TREEOPT_TEST_VLLM=1): the recorder on vLLM's own V2 classes, without a server; see `v2_runner`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from served.environment import server_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif("TREEOPT_TEST_VLLM" not in os.environ, reason="runs vLLM's code: TREEOPT_TEST_VLLM=1")
def test_ranks_are_those_of_the_drafter_in_the_v2_runner(tmp_path: Path) -> None:
    python = server_environment() / "bin" / "python"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    ran = subprocess.run(
        [str(python), str(Path(__file__).with_name("v2_runner.py")), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert not said["broken"], ran.stderr[-4000:]
    header, *rows = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert header["engine"] == "vllm"
    assert [row["ranks_to_miss"] for row in rows] == said["ranks"]
    assert {rank > 0 for row in rows for rank in row["ranks_to_miss"]} == {True, False}
    assert {(row["running"], row["temperature"], row["drafted"]) for row in rows} == {(3, 0.0, 3)}
    assert rows[0]["context"] == 5 + 1
