"""Measured step times as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType

from treeopt.render.text import plain_table

if TYPE_CHECKING:
    from treeopt.measure.rows import ServerSteps


def report(measured: ServerSteps, width: int) -> RenderableType:
    """One line per batch size and server: K, the step with its interval, E, tokens per second."""
    table = plain_table("requests", "K", "step ms", "95 % interval", "E", "tokens/s", "steps")
    for r in sorted(measured.rows, key=lambda r: (r.batch, r.k_max, r.k)):
        k = "plain" if r.k_max == 0 else f"{r.k} of {r.k_max}"
        interval = "not known" if r.low is None or r.high is None else f"{r.low:.2f} to {r.high:.2f}"
        table.add_row(
            str(r.batch), k, f"{r.step_ms:.2f}", interval, f"{r.accept_len:.3f}", f"{r.tokens_per_s:,.0f}", str(r.n)
        )
    return table
