"""What a plan gains over what runs today, with the interval."""

from __future__ import annotations

from collections.abc import Sequence

from treeopt.planner.compare import Comparison
from treeopt.render.pictures.style import RIVALS, Picture, at_batches, ink, legend, new_axes, new_figure
from treeopt.render.text import gain

_APART = 1.06  # so much beside each other that intervals do not cover one another


def gains_picture(found: Sequence[Comparison]) -> Picture:
    """The gain in tokens/s over each rival, by batch size, with 95 % intervals; of several contexts the longest."""
    longest = max(c.context for c in found)
    shown = [c for c in found if c.context == longest]
    figure = new_figure(290)
    axes = new_axes(figure, x="running requests (batch)", y="more tokens/s")
    names = list(dict.fromkeys(c.rival for c in shown))
    for i, name in enumerate(names):
        own, colour = [c for c in shown if c.rival == name], ink(RIVALS[i % len(RIVALS)])
        x = [c.batch * _APART ** (i - (len(names) - 1) / 2) for c in own]
        for at, c in zip(x, own, strict=True):
            if c.gain.low is not None and c.gain.high is not None:
                axes.plot([at, at], [100 * c.gain.low, 100 * c.gain.high], color=colour, linewidth=1.6, alpha=0.6)
        axes.plot(x, [100 * c.gain.value for c in own], "Dv^"[i % 3], color=colour, markersize=5, label=f"over {name}")
    axes.axhline(0.0, color=ink("plain"), linewidth=1.2, linestyle=":")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g} %" if value else "0")
    at_batches(axes, sorted({c.batch for c in shown}))
    legend(figure, axes)
    said = "; ".join(f"batch {c.batch} over {c.rival}: {gain(c.gain)}, {c.verdict}" for c in shown)
    return Picture("gains", "What the plan gains over what runs today", f"{said}.", figure)
