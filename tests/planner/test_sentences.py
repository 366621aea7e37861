"""Every sentence of the reasons has an example in one readable file, and the file says what is said."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from planner.sentences import PAGE, page

from treeopt.planner import reasons

_LETTERS = re.compile(r"[A-Za-z]{2,}")


def pieces() -> Iterator[str]:
    """The literal pieces of all sentences: texts with words in them, docstrings and patterns apart."""
    tree = ast.parse(inspect.getsource(reasons))
    docs = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and node not in docs else None
        if isinstance(text, str) and len(_LETTERS.findall(text)) >= 3:
            yield text.strip()


def test_the_file_says_what_is_said() -> None:
    assert PAGE.read_text() == page(), "look at what changed: `python tests/planner/sentences.py` writes it anew"


def test_every_sentence_has_an_example() -> None:
    text, found = PAGE.read_text(), list(pieces())
    assert len(found) > 25
    assert [piece for piece in found if piece not in text] == []
