"""Numbers and tables as all reports write them."""

from __future__ import annotations

from rich.table import Table

from treeopt.plan_bucket import Estimate


def plain_table(*columns: str) -> Table:
    """A table without lines; the first column to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
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


def loss(share: float) -> str:
    """A share without a sign for gains, as it is lost."""
    return f"{share:.1%}".replace("-0.0%", "0.0%")


def speedup(factor: Estimate) -> str:
    """A factor with its interval."""
    value, space, interval = estimate(factor).partition(" ")
    return f"{value}x{space}{interval}"


def ms(seconds: float) -> str:
    """Milliseconds."""
    return f"{seconds * 1e3:.2f}"


def rate(tokens_per_s: float) -> str:
    """Tokens per second."""
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"


def words(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")
