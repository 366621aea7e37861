"""Every sentence that search, explain, compare and check print, with one example each: sentences.md, to be read.

`PYTHONPATH=. python tests/golden/sentences.py` writes it anew from the recorded outputs beside it and the examples of
the reasons (tests/planner/sentences.md). What has no example yet stands at its end: a new sentence is seen there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
PAGE: Final = HERE / "sentences.md"
REASONS: Final = ROOT / "tests" / "planner" / "sentences.md"
SOURCES: Final = (
    *("render/search.py", "render/because.py", "render/bucket_table.py", "render/explain.py"),
    *("render/compare.py", "render/check.py"),
    *("planner/reasons.py", "planner/evidence_notes.py", "planner/for_engine.py", "planner/compare.py"),
    *("planner/inputs.py", "check/check.py", "check/checks.py", "check/comparing.py", "check/matching.py"),
)
_WORD: Final = re.compile(r"[A-Za-z]{2,}")
_LEAST: Final = 3  # words; fewer are columns and names


class Template(NamedTuple):
    """A sentence of the source: its literal pieces in order, `...` for what is filled in between."""

    where: str
    pieces: tuple[str, ...]

    @property
    def words(self) -> str:
        """The sentence with what is filled in left open."""
        return " ".join("...".join(self.pieces).split())

    def example(self, text: str) -> str | None:
        """The shortest place of a text that says it."""
        open_end = r".{0,300}?".join(re.escape(" ".join(piece.split())) for piece in self.pieces if piece.strip())
        found = re.search(open_end.replace(r"\ ", r"\s+"), text)
        return None if found is None else " ".join(found.group().split())


def templates() -> Iterator[Template]:
    """Every text with words in it, docstrings, patterns and keys apart."""
    for where in SOURCES:
        tree = ast.parse((ROOT / "treeopt" / where).read_text())
        skipped = {id(child) for node in ast.walk(tree) if _is_no_text(node) for child in ast.walk(node)}
        inside: set[int] = set()
        for node in ast.walk(tree):
            if id(node) in skipped or id(node) in inside:
                continue
            if isinstance(node, ast.JoinedStr):
                inside |= {id(child) for child in node.values if isinstance(child, ast.Constant)}
                yield from _worded(where, tuple(_pieces(node)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from _worded(where, (node.value,))


def _worded(where: str, pieces: tuple[str, ...]) -> Iterator[Template]:
    if len(_WORD.findall(" ".join(pieces))) >= _LEAST:
        yield Template(where, pieces)


def _pieces(node: ast.JoinedStr) -> Iterator[str]:
    for part in node.values:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _is_no_text(node: ast.AST) -> bool:
    """A docstring, a pattern, or what an error says, which has a test of its own."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Raise):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compile"


def corpus() -> dict[str, str]:
    """What the commands printed, by name of the record."""
    texts = {path.stem: " ".join(path.read_text().split()) for path in sorted((HERE / "outputs").glob("*.txt"))}
    return {**texts, "reasons": " ".join(REASONS.read_text().split())}


def page() -> str:
    """All sentences with an example, then those that have none."""
    texts, missing, shown = corpus(), list[Template](), set[str]()
    parts, found_in = [HEAD], list(templates())
    for where in SOURCES:
        parts.append(f"\n## {where}\n")
        for template in found_in:
            if template.where != where or template.words in shown:
                continue
            shown.add(template.words)
            found = next(((name, e) for name, text in texts.items() if (e := template.example(text))), None)
            if found is None:
                missing.append(template)
            else:
                parts.append(f"- {found[1]} ({found[0]})")
    if missing:
        parts += ["\n## Without an example yet\n", *(f"- {template.words} ({template.where})" for template in missing)]
    return "\n".join(parts) + "\n"


HEAD: Final = """# What search, explain, compare and check say

One example of every sentence, by the source that says it, with the record that holds it (tests/golden/outputs). Made by
`PYTHONPATH=. python tests/golden/sentences.py`; a test compares, so
that somebody reads what is new or changed."""

if __name__ == "__main__":
    PAGE.write_text(page())
