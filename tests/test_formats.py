"""docs/formats.md says what the types say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_page_is_that_of_the_types() -> None:
    made = runpy.run_path(str(DOCS / "formats.py"))["page"]()
    assert (DOCS / "formats.md").read_text() == made, "run `PYTHONPATH=. python docs/formats.py --write`"


def test_every_format_that_a_type_declares_is_documented() -> None:
    """A record with a FORMAT is a document of a command: it belongs into the page."""
    root = DOCS.parent / "treeopt"
    declared = {
        name for path in root.rglob("*.py") for name in re.findall(r'FORMAT: ClassVar\b.* = "(.+)"', path.read_text())
    }
    page = (DOCS / "formats.md").read_text()
    assert declared
    assert [name for name in sorted(declared) if f"`{name}`" not in page] == []
