"""What `treeopt profile` is about to time and what it found, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.cost.fit.choose import FittedFamily
from treeopt.cost.kernels.stand_ins import WIDE_FORMATS
from treeopt.profile.beside import Beside
from treeopt.profile.points import EXPERTS, GEMM, Ceilings, KernelPoint
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
    if profiled.beside:
        parts += [Text(), _beside(profiled.beside)]
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


def _beside(found: Sequence[Beside]) -> Table:
    table = _table("not fitted", "points", "median", "worst")
    table.add_column("times", overflow="fold")
    for operator, other, points, median, worst in found:
        table.add_row(_name(operator), str(points), f"{median:.2f}x", f"{worst:.1f}x", other)
    return table


def _shape(point: KernelPoint) -> str:
    """What the points of one row of the dry run have in common."""
    sizes, name = dict(point.sizes), _name(point.operator)
    if point.operator == GEMM:
        narrow = "" if point.dtype in WIDE_FORMATS else f"{point.dtype} "
        return f"{narrow}gemm {sizes['outputs']} x {sizes['inputs']}"
    if point.operator == EXPERTS:
        routing = "skewed" if sizes["skewed"] else "balanced"
        layer = f"{sizes['per_token']} of {sizes['experts']}, {sizes['hidden']} x {sizes['intermediate']}"
        return f"experts {layer}, {routing}"
    if "requests" not in sizes:
        return name
    heads = "/".join(str(sizes[kind]) for kind in ("heads", "kv_heads") if kind in sizes)
    of = f" of {sizes['head_dim']}" if "head_dim" in sizes else ""
    return f"{name} {heads} heads{of}, B {sizes['requests']}"


def _name(operator: str) -> str:
    return operator.replace("_", " ")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table
