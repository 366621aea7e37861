"""What `treeopt ranks watch` sees: a line per poll, and the acceptance by position in the end."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from treeopt.answer import Estimate
from treeopt.check.live import Watch, Watched
from treeopt.render.text import plain_table

_SHOWN = 6  # positions in a line


def line(seen: Watch) -> str:
    """One poll: `12 s: 1,204 steps, E 2.31 [2.19, 2.43]; 0.71 [0.68, 0.74], 0.52 [0.48, 0.56]`."""
    if not seen.sources:
        return f"{seen.seconds:.0f} s: nothing was drafted yet"
    return f"{seen.seconds:.0f} s: {' | '.join(map(_told, seen.sources))}"


def _told(source: Watched) -> str:
    steps = "" if source.steps is None else f"{source.steps:,.0f} steps"
    length = "" if source.acceptance_length is None else f"E {_with_ends(source.acceptance_length, 2)}"
    positions = ", ".join(_with_ends(p, 3) for p in source.positions[:_SHOWN])
    counted = ", ".join(filter(None, (steps, length)))
    return "; ".join(filter(None, (counted, positions))) or "not counted"


def report(seen: Watch, width: int) -> RenderableType:
    """The last poll, source by source, and what was decided."""
    parts: list[RenderableType] = []
    for source in seen.sources:
        steps = "" if source.steps is None else f"{source.steps:,.0f} steps"
        drafted = source.draft_tokens_per_draft
        told = [steps, "" if drafted is None else f"{drafted:.3g} draft tokens per draft"]
        parts.append(Text(f"{source.source}: {', '.join(filter(None, told)) or 'not counted'}"))
        table = plain_table("accepted to", "share of steps", "95 % interval")
        for position, share in enumerate(source.positions, start=1):
            table.add_row(str(position), f"{share.value:.3f}", _ends(share, 3))
        if source.acceptance_length is not None:
            table.add_row("E", f"{source.acceptance_length.value:.2f}", _ends(source.acceptance_length, 2))
        parts += [table, Text()]
    if not seen.sources:
        parts.append(Text("nothing was drafted while it was watched", style="yellow"))
    if seen.decided:
        parts.append(Text(f"decided: {seen.decided}", style="bold green"))
    if seen.cannot:
        parts.append(Text(f"cannot be decided here: {seen.cannot}", style="bold yellow"))
    return Group(*parts)


def _with_ends(number: Estimate, digits: int) -> str:
    if number.low is None or number.high is None:
        return f"{number.value:.{digits}f}"
    return f"{number.value:.{digits}f} [{number.low:.{digits}f}, {number.high:.{digits}f}]"


def _ends(number: Estimate, digits: int) -> str:
    if number.low is None or number.high is None:
        return "not known"
    return f"{number.low:.{digits}f} to {number.high:.{digits}f}"
