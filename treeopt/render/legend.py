"""The line under a table for each symbol that it used."""

from __future__ import annotations

from rich.text import Text

from treeopt.draft_words import DraftWords
from treeopt.glossary import short


def legend(words: DraftWords, *, has_length: bool = True) -> Text:
    """What the count of drafts is, by the engine's name of it, and what E is where the table `has_length`."""
    counted = short(words.head, words.setting, counts_root=words.uncounted == 0)
    return Text(f"{counted}\n{short('E')}" if has_length else counted, style="dim")
