"""`treeopt glossary`: the words of answers."""

from __future__ import annotations

from typing import Annotated

from treeopt.cli.command import Argument


def glossary(
    word: Annotated[str | None, Argument(metavar="WORD", help="Only this word, or those about it.")] = None,
) -> None:
    """Say what the words and symbols of answers mean."""
    from treeopt.cli import console
    from treeopt.glossary import words_about
    from treeopt.render.glossary import report

    console.result(report(words_about(word or ""), console.width()))
