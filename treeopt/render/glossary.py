"""The words of answers as a list."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from treeopt.glossary import Word


def report(words: Sequence[Word], width: int) -> Table:
    """A word a row, its meaning folded beside it."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(max_width=min(width, 110) - 30)
    for word in words:
        table.add_row(Text(word.name, style="bold"), word.meaning)
    return table
