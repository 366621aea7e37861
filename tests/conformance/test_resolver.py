"""treeopt beside an engine changes nothing of it: pip and uv pick the same packages with and without.

Opt-in (TREEOPT_TEST_RESOLVER=1), minutes for each engine: asks the package index, installs nothing (see `resolution`).
TREEOPT_TEST_RESOLVER_FOLDER=DIR keeps the metadata for another run. An engine that is not installable from wheels alone
is skipped with uv's words.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conformance.resolution import ENGINES, PYTHONS, Releases, settled, wheel


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    kept = os.environ.get("TREEOPT_TEST_RESOLVER_FOLDER")
    return Releases(Path(kept) if kept else tmp_path_factory.mktemp("releases"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """treeopt as a wheel."""
    return wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.skipif(
    "TREEOPT_TEST_RESOLVER" not in os.environ, reason="minutes for each engine: set TREEOPT_TEST_RESOLVER=1"
)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_gets_the_same_packages(releases: Releases, ours: Path, engine: str, python: str) -> None:
    answer = settled(engine, python, ours, releases)
    if answer.why_not:
        pytest.skip(f"not installable alone from wheels: {answer.why_not}")
    assert not any(answer.changed.values()), answer.changed
    assert not any(answer.by_uv.values()), answer.by_uv
