"""The commands that the docs show, as they stand in their pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
# Why a block is not run stands before it, where a reader of the source sees it.
_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>[^>]+) -->\n)?^```(?P<kind>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
REASONS = (
    "needs a server",
    "needs an engine",
    "needs a GPU",
    "needs a GPU, or minutes of a processor",
    "needs a model from a hub",
    "needs measured rows, which are not in the clone",
)


class Block(NamedTuple):
    """A fenced block: its language, its text, and why it is not run (None where it is)."""

    page: str
    kind: str
    text: str
    why: str | None


def blocks(page: str) -> list[Block]:
    """All of a page, in its order."""
    text = (ROOT / page).read_text()
    return [Block(page, m["kind"].strip(), m["text"], m["why"]) for m in _FENCE.finditer(text)]


def lines(text: str) -> Iterator[str]:
    """The command lines of a block, continued ones in one."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of each `treeopt` on its lines, those behind `&&` and a path too."""
    for line in lines(block.text):
        words = shlex.split(line, comments=True)
        for part in _parts(words):
            if part and part[0].rpartition("/")[2] == "treeopt":
                yield part[1:]


def inline(page: str) -> list[str]:
    """Commands in the running text and in tables: `treeopt show PLAN`."""
    text = _FENCE.sub("", (ROOT / page).read_text())
    return re.findall(r"`treeopt ([^`]+)`", text)


def _parts(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word in ("&&", "|", ";"):
            yield part
            part = []
        else:
            part.append(word)
    yield part
