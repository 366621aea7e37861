"""The folder of shared data beside the checkout, for tests that use more than the project ships."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = SHARED / "data"  # scripts of benchmarks set it to the folder that they are given

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not beside this checkout")
