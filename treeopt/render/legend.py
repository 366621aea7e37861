"""The line under a table for each symbol that it used."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from treeopt.answer import Estimate
from treeopt.draft_words import DraftWords
from treeopt.glossary import short


def legend(words: DraftWords, *, has_length: bool = True, speedups: Iterable[Estimate | None] = ()) -> Text:
    """What the count of drafts is, by the engine's name of it, what E is where the table `has_length`, and what the
    interval of a speedup holds where one has it.
    """
    lines = [short(words.head, words.setting, counts_root=words.uncounted == 0)]
    if has_length:
        lines.append(short("E"))
    if any(found is not None and found.low != found.high for found in speedups):
        lines.append(short("speedup"))
    return Text("\n".join(lines), style="dim")
