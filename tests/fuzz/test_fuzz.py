"""The fuzz driver at fixed seeds: about a minute on two quiet cores. By hand for hours: see `fuzz.driver`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
CASES = 1000

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cases are watched through /proc")


@pytest.mark.parametrize(
    "options", ["--seed 61 --no-torch", "--seed 62 --no-torch", "--seed 63 --no-torch", "--seed 64"]
)
def test_every_command_on_damaged_files(options: str) -> None:
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fuzz.driver", "--cases", str(CASES), *options.split()]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False, cwd=TESTS
    )
    assert done.returncode == 0, f"run `python -m fuzz.driver {options} --only NUMBER`:\n{done.stdout[-8000:]}"
    assert f"{CASES} cases" in done.stdout
