"""treeopt beside an engine changes nothing of it: pip's resolver picks the same packages with and without.

Opt-in (TREEOPT_TEST_RESOLVER=1), minutes for each engine: asks the package index, installs nothing, takes binary
wheels only. An engine that is not installable from wheels alone is skipped with pip's words.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINES = ("vllm==0.33.0", "vllm==0.12.0", "sglang==0.5.23", "sglang==0.5.6")  # newest, and a year before
PYTHONS = ("3.11", "3.12", "3.13")
TIMEOUT_S = 1800
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in range(39, 4, -1)), "manylinux2014_x86_64", "linux_x86_64")


def extras() -> list[str]:
    """All that users install; `dev` is for a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(set(project["optional-dependencies"]) - {"dev"})


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """treeopt as a wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        str(ROOT),
        "-w",
        str(folder),
    ]
    subprocess.run(words, check=True, timeout=TIMEOUT_S, capture_output=True)
    (wheel,) = folder.glob("treeopt-*.whl")
    return wheel


def resolved(folder: Path, python: str, *requirements: str) -> dict[str, str] | str:
    """The version of every package that pip would install; what it says where there is no way."""
    report = folder / "report.json"
    words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "-q", "--only-binary", ":all:"]
    words += [
        "--python-version",
        python,
        *(word for name in PLATFORMS for word in ("--platform", name)),
        "--target",
        str(folder),
        "--report",
        str(report),
        *requirements,
    ]
    ran = subprocess.run(words, timeout=TIMEOUT_S, capture_output=True, text=True, check=False)
    if ran.returncode:
        return ran.stderr[-500:]
    found = json.loads(report.read_text())["install"]
    return {item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in found}


@pytest.mark.skipif(
    "TREEOPT_TEST_RESOLVER" not in os.environ, reason="minutes for each engine: set TREEOPT_TEST_RESOLVER=1"
)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_gets_the_same_packages(tmp_path: Path, ours: Path, engine: str, python: str) -> None:
    alone = resolved(tmp_path, python, engine)
    if isinstance(alone, str):
        pytest.skip(f"not installable alone from wheels: {alone}")
    for extra in ("", *extras()):
        together = resolved(tmp_path, python, engine, f"{ours}[{extra}]" if extra else str(ours))
        assert not isinstance(together, str), (extra, together)
        assert {name: together.get(name) for name in alone} == alone, extra
