"""The docs as a site: strict, whole, and nothing in it from elsewhere."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOOKS = runpy.run_path(str(ROOT / "docs" / "hooks.py"))


def test_links_go_to_the_sites_pages() -> None:
    def linked(text: str) -> str:
        return HOOKS["linked"](text, "docs/engines.md")

    assert linked("[a](runtime.md#part)") == "[a](runtime.md#part)"
    assert linked("[a](../profiles/ranks/README.md)") == "[a](profiles-ranks.md)"
    assert linked("[a](../ARCHITECTURE.md)") == "[a](architecture.md)"
    assert linked("[a](https://example.org/x.md)") == "[a](https://example.org/x.md)"
    assert linked("[a program](../examples/own_step_times.py)") == "a program (`examples/own_step_times.py`)"
    assert (
        HOOKS["linked"]("![a](docs/search.svg) [b](docs/engines.md)", "README.md") == "![a](search.svg) [b](engines.md)"
    )


def test_every_command_has_its_help() -> None:
    page = HOOKS["commands_page"]()
    for name in ("search", "report", "profile fit", "ranks import", "ranks collect"):
        assert f"## treeopt {name}\n" in page
    assert "--with" in page
    assert "--report" in page


@pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("material") is None, reason="the extra docs is not installed"
)
def test_the_site_is_built_and_asks_for_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(tmp_path.glob("*.html"))
    assert {"index.html", "cli.html", "start-vllm.html", "decisions.html"} <= {page.name for page in pages}
    for page in pages:
        asked = re.findall(r"""<(?:script|img|link|iframe)[^>]+(?:src|href)=["']?(https?:[^"' >]+)""", page.read_text())
        assert asked == [], page.name
