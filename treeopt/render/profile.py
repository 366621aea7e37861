"""What `treeopt profile` is about to time and what it found, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.cost.fit.choose import FittedFamily
from treeopt.profile.points import ATTENTION, COMPACTION, GEMM, Ceilings, KernelPoint
from treeopt.profile.profile import DryRun, OverFloor, Profiled


def dry_run(found: DryRun, width: int) -> RenderableType:
    """The grid by kernel shape: how many points, their floors, and the time that they are expected to take."""
    table = _table("kernel", "points", "floor from", "to", "expected")
    points, seconds, ceilings = found.points, found.seconds, found.ceilings
    operators = list(dict.fromkeys(point.operator for point in points))
    by_batch = sorted(points, key=lambda p: (operators.index(p.operator), dict(p.sizes).get("requests", 0)))
    for shape in dict.fromkeys(map(_shape, by_batch)):
        mine = [at for at, point in enumerate(points) if _shape(point) == shape]
        floors = [points[at].floor_s(ceilings) for at in mine]
        expected = sum(seconds[at] for at in mine)
        table.add_row(shape, str(len(mine)), time_text(min(floors)), time_text(max(floors)), time_text(expected))
    total = f"{len(points)} points, about {time_text(sum(seconds))}"
    return Group(ceilings_line(ceilings), Text(), table, Text(), Text(total, style="bold"))


def report(profiled: Profiled, width: int) -> RenderableType:
    """The fits with their held-out errors, then how far the points are above their floors."""
    hardware = profiled.fitted.hardware
    engine = hardware.measurement.engine if hardware.measurement else ""
    heading = Text().append(hardware.name, style="bold").append(f": {hardware.device}, {engine}")
    parts: list[RenderableType] = [heading, ceilings_line(profiled.ceilings)]
    if profiled.noise is not None:
        parts.append(Text(f"the same point timed twice: {profiled.noise:.1%} apart"))
    parts += [Text(), _fits(profiled.fitted.families), Text(), _floors(profiled.over_floor)]
    price = profiled.compaction_over_price
    if price is not None:
        sentence = f"compaction takes {price.median:.1f} times its price in the profile (a stream of its bytes)"
        parts += [Text(), Text(f"{sentence}, {price.worst:.1f} times at worst, over {price.points} points")]
    return Group(*parts)


def ceilings_line(ceilings: Ceilings) -> Text:
    """The rates of a large copy and a large matrix product."""
    copy, product = ceilings.bandwidth_bytes_per_s / 1e9, ceilings.flops_per_s / 1e9
    return Text(f"ceilings: copy {copy:,.4g} GB/s, matrix product {product:,.5g} GFLOP/s")


def time_text(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _fits(families: Sequence[FittedFamily]) -> Table:
    table = _table("fitted", "rows", "shapes", "GB/s", "GFLOP/s", "launch", "held out: median", "p90")
    for found in families:
        form = found.fit.roofline
        table.add_row(
            f"{found.family} {found.dtype}",
            str(found.fit.rows),
            str(found.fit.shapes),
            f"{form.bandwidth_bytes_per_s / 1e9:,.4g}",
            f"{form.peak_flops / 1e9:,.5g}" if math.isfinite(form.peak_flops) else "-",
            time_text(form.launch_s),
            f"{found.fit.error.median:.1%}",
            f"{found.fit.error.p90:.1%}",
        )
    return table


def _floors(found: Sequence[OverFloor]) -> Table:
    table = _table("timed", "points", "over the floor: median", "worst")
    table.add_column("at", overflow="fold")
    for operator, points, median, worst in found:
        sizes = ", ".join(f"{name} {value}" for name, value in worst.point.sizes[:3])
        table.add_row(operator, str(points), f"{median:.2f}x", f"{worst.over_floor:.1f}x", sizes)
    return table


def _shape(point: KernelPoint) -> str:
    """What the points of one row of the dry run have in common."""
    if point.operator == GEMM:
        return f"gemm {point.size('outputs')} x {point.size('inputs')}"
    if point.operator in (ATTENTION, COMPACTION):
        heads = f"{point.size('heads')}/" if point.operator == ATTENTION else ""
        name = point.operator.replace("_", " ")
        return f"{name} {heads}{point.size('kv_heads')} heads of {point.size('head_dim')}, B {point.size('requests')}"
    return point.operator


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table
