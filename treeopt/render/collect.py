"""What `treeopt ranks collect` recorded."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from treeopt.collect.job import Collected


def report(found: Collected, width: int) -> RenderableType:
    """How much was recorded, and how often the top guess was right at each depth."""
    # No text is as long as the deepest guesses where fewer tokens are written than guessed ahead.
    rates = ", ".join("-" if rate is None else f"{rate:.3f}" for rate in found.top_guess_right)
    return Text(
        f"{found.documents} documents, {found.positions} positions, depth {found.depth}\n"
        f"top guess right at depth 1, 2, ...: {rates}"
    )
