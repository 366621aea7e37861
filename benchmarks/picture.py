"""The README's picture, from the real command: `python benchmarks/picture.py` writes docs/search.svg."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from treeopt.cli import console, main

COMMAND = ["treeopt", "search", "--batch", "32", "--model", "vicuna-7b", "--drafter", "medusa"]


def record() -> None:
    pen = Console(record=True, width=100, force_terminal=True, file=sys.stderr, highlight=False)
    pen.print(Text("$ " + " ".join(COMMAND), style="bold"))
    console.result = lambda *parts: [pen.print(part) for part in parts]  # type: ignore[assignment]
    console.notes = lambda warnings: [pen.print(f"{w.level}: {w.text}", style="dim") for w in warnings]  # type: ignore[assignment]
    sys.argv = COMMAND
    try:
        main()
    except SystemExit:
        path = Path(__file__).parents[1] / "docs" / "search.svg"
        path.write_text(pen.export_svg(title="treeopt"))


if __name__ == "__main__":
    record()
