"""Numbers and tables as all reports write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.answer import Estimate

_GAP = 2  # columns between two columns of a table


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a report: text goes to the left and may be folded, numbers go to the right and are never cut."""

    name: str
    cells: Sequence[str | Text]
    is_text: bool = False

    @property
    def width(self) -> int:
        """What it takes on one line."""
        return max(cell_len(str(cell)) for cell in (self.name, *self.cells))


def plain_table(*columns: str) -> Table:
    """A table without lines; the first column to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def tables(keys: Sequence[Column], groups: Sequence[Sequence[Column]], width: int) -> RenderableType:
    """One table; where that is wider than `width`, several below one another, each with the keys first.

    A group's columns belong together and are not parted. Nothing is left out.
    """
    parts: list[RenderableType] = []
    for columns in _packed(keys, groups, width):
        parts += [*([Text()] if parts else []), _table([*keys, *columns])]
    return Group(*parts)


def _packed(keys: Sequence[Column], groups: Sequence[Sequence[Column]], width: int) -> Iterator[list[Column]]:
    columns: list[Column] = []
    for group in groups:
        widths = [column.width for column in (*keys, *columns, *group)]
        if columns and sum(widths) + _GAP * (len(widths) - 1) > width:
            yield columns
            columns = []
        columns += group
    yield columns


def _table(columns: Sequence[Column]) -> Table:
    table = plain_table(*(column.name for column in columns))
    for made, column in zip(table.columns, columns, strict=True):
        if column.is_text:
            made.justify, made.no_wrap, made.overflow = "left", False, "fold"
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def contexts(low: int, high: int) -> str:
    """A range of contexts."""
    return str(high) if low == high else f"{low}-{high}"


def estimate(number: Estimate) -> str:
    """A number with its interval."""
    if number.low is None or number.high is None:
        return f"{number.value:.2f}"
    return f"{number.value:.2f} [{number.low:.2f}, {number.high:.2f}]"


def percent(share: float) -> str:
    """A share with its sign."""
    return f"{share + 0.0:+.1%}".replace("-0.0%", "+0.0%")


def gain(share: Estimate) -> str:
    """A share with its sign and interval."""
    if share.low is None or share.high is None:
        return percent(share.value)
    return f"{percent(share.value)} [{percent(share.low)}, {percent(share.high)}]"


def loss(share: float) -> str:
    """A share without a sign for gains, as it is lost."""
    return f"{share:.1%}".replace("-0.0%", "0.0%")


def speedup(factor: Estimate | None) -> str:
    """A factor with its interval; a dash where there is nothing to compare with."""
    if factor is None:
        return "-"
    value, space, interval = estimate(factor).partition(" ")
    return f"{value}x{space}{interval}"


def ms(seconds: float) -> str:
    """Milliseconds."""
    return f"{seconds * 1e3:.2f}"


def rate(tokens_per_s: float | Estimate) -> str:
    """Tokens per second."""
    if isinstance(tokens_per_s, Estimate):
        return rate(tokens_per_s.value)
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"


def room(extra_ms_below: float) -> str:
    """What a speculative step may take for a draft to pay: below 0 the kernels alone take too long as priced."""
    if extra_ms_below > 0.0:
        return f"if the engine adds less than {extra_ms_below:.1f} ms per speculative step"
    return f"if a speculative step takes {-extra_ms_below:.1f} ms less than priced and the engine adds nothing"


def words(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")
