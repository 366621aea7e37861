"""Files of served step times, whatever their kind, as checked rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from treeopt.cost.served.bench_rows import HeldFile, read_bench_steps
from treeopt.cost.served.checks import CheckedSteps, checked
from treeopt.cost.served.csv_rows import read_csv_steps
from treeopt.cost.served.step import ServedStep, medians
from treeopt.cost.served.text_rows import holds_printed_steps, read_printed_steps
from treeopt.errors import FileFormatError
from treeopt.files.documents import read_text
from treeopt.files.opening import called


def read_steps(paths: Sequence[Path]) -> CheckedSteps:
    """The rows of all files together, without copies, with what was found odd.

    Raises:
        InputError: a file cannot be read.
        FileFormatError: it holds no step times, or one that cannot be right (file and line).
    """
    return checked([row for path in paths for row in _read(path, read_text(path, what=_WHAT))])


def steps_of(path: Path, text: str) -> CheckedSteps:
    """As `read_steps`, of one file whose text was read already: a pipe gives it only once."""
    return checked(_read(path, text))


def _read(path: Path, text: str) -> list[ServedStep]:
    if holds_printed_steps(text):
        return medians(read_printed_steps(HeldFile(path, held=text), text))
    rows = read_csv_steps(path, text) if is_csv(text) else read_bench_steps(path, text)
    if not rows:
        raise FileFormatError(f"{called(path)}: a header and no rows", hint="give at least one measured step per line")
    return rows


def is_csv(text: str) -> bool:
    """Whether a file of numbers is CSV rather than JSON, told from its first character."""
    return text.removeprefix("\ufeff").lstrip()[:1] not in ("{", "[")


_WHAT: Final = "file of step times"
