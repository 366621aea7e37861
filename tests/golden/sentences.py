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
    *(
        "planner/inputs.py",
        "planner/cost_input.py",
        "check/check.py",
        "check/checks.py",
        "check/comparing.py",
        "check/matching.py",
    ),
)
_WORD: Final = re.compile(r"[A-Za-z]{2,}")
_SENTENCE_ENDS: Final = re.compile(r"(?<=[.;])\s+|(?<=\|) ")
_ALONE: Final = re.compile(r"(?:note|warning|error|hint): |- ")
_JSON: Final = re.compile(r"\s*[\[\]{}\"]")
WIDTH: Final = 110  # of the terminal that was recorded
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
        """The shortest place of a text that says it, with the rest of its sentence."""
        open_end = r".{0,200}?".join(re.escape(" ".join(piece.split())) for piece in self.pieces if piece.strip())
        found = re.search(open_end.replace(r"\ ", r"\s+"), text)
        if found is None:
            return None
        before, after = _SENTENCE_ENDS.split(text[: found.start()])[-1], _SENTENCE_ENDS.split(text[found.end() :])[0]
        return " ".join(f"{before}{found.group()}{after}".split())


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
    if len(_WORD.findall(" ".join(pieces))) >= _LEAST and any(" " in piece for piece in pieces):
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


def corpus() -> dict[str, list[str]]:
    """What the commands printed, by name of the record, in pieces that are read as one: see `pieces_of`."""
    records = sorted((HERE / "outputs").glob("*.txt"))
    texts = {path.stem: list(pieces_of(path.read_text())) for path in records}
    return {**texts, "reasons": list(pieces_of(REASONS.read_text()))}


def pieces_of(text: str) -> Iterator[str]:
    """Lines of prose that were one before the terminal's width broke it; a line of a table or a message by itself.

    Documents and files that a command wrote are left out: what they say is printed too.
    """
    run: list[str] = []
    for line in [*text.split("\n--- out")[0].splitlines(), ""]:
        words = line.split()
        if run and not (words and len(f"{run[-1]} {words[0]}") > WIDTH and not _ALONE.match(line)):
            yield " ".join(" ".join(run).split()).removeprefix("- ")
            run = []
        if words and not _JSON.match(line):
            run.append(line)


def page() -> str:
    """All sentences with an example, each once, then those that have none."""
    texts, missing, found_in = corpus(), list[Template](), list(templates())
    parts, shown = [HEAD], list[str]()
    for where in SOURCES:
        own = list[str]()
        for template in dict.fromkeys(t for t in found_in if t.where == where):
            if any(template.example(said) for said in (*shown, *own)):
                continue
            example = _first(template, texts)
            if example is None:
                missing.append(template)
            else:
                own.append(example)
        own = [said for said in own if not any(_is_part(said, other) for other in own)]
        parts += [f"\n## {where}\n", *(f"- {said}" for said in own)] if own else []
        shown += own
    if missing:
        lacking = (f"- {template.words} ({template.where})" for template in missing)
        parts += [f"\n{WITHOUT}\n", *lacking]
    return "\n".join(parts) + "\n"


def _is_part(said: str, other: str) -> bool:
    return said != other and said.rpartition(" (")[0] in other


def _first(template: Template, texts: dict[str, list[str]]) -> str | None:
    """The shortest example of the first record that has one, with the record's name."""
    for name, pieces in texts.items():
        examples = [said for piece in pieces if (said := template.example(piece)) is not None]
        if examples:
            return f"{min(examples, key=len)} ({name})"
    return None


WITHOUT: Final = "## Without an example"
HEAD: Final = """# What search, explain, compare and check say

One example of every sentence, by the source that says it, with the record that holds it (tests/golden/outputs): ten
minutes to read. Made by `PYTHONPATH=. python tests/golden/sentences.py`; a test compares, so that somebody reads what
is new or changed."""

if __name__ == "__main__":
    PAGE.write_text(page())
