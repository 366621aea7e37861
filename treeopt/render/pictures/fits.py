"""What was measured beside what a fit says of it, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treeopt.cost.fit.sample import Seen
from treeopt.render.pictures.style import Picture, ink, legend, new_axes, new_figure, short

_INKS = ("plan", "chain", "rival-2", "rival-1", "rival-3", "term-3", "term-8", "plain")
_MARKERS = "os^Dv"


def fit_picture(name: str, seen: Sequence[Seen]) -> Picture:
    """Fitted over measured times on the left, their ratio on the right."""
    figure = new_figure(360, width=840)
    left = new_axes(figure, x="measured, ms", y="fitted, ms", box=(58, 44, 330, 250))
    right = new_axes(figure, x="measured, ms", y="fitted / measured", box=(476, 44, 350, 250))
    for i, own in enumerate(seen):
        colour, marker = ink(_INKS[i % len(_INKS)]), _MARKERS[i % len(_MARKERS)]
        measured_ms, fitted_ms = 1e3 * own.measured_s, 1e3 * own.fitted_s
        left.plot(measured_ms, fitted_ms, marker, color=colour, markersize=3, alpha=0.6, label=own.name)
        right.plot(measured_ms, fitted_ms / measured_ms, marker, color=colour, markersize=3, alpha=0.6)
    every = np.concatenate([1e3 * own.measured_s for own in seen])
    ends = [float(every.min()), float(every.max())]
    left.plot(ends, ends, color=ink("muted"), linewidth=1)
    right.axhline(1.0, color=ink("muted"), linewidth=1)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
    left.set_yscale("log")
    left.yaxis.set_major_formatter(lambda value, _: short(value))
    legend(figure, left, columns=6)
    return Picture("fit", f"{name}: measured and fitted times", _in_words(seen), figure)


def _in_words(seen: Sequence[Seen]) -> str:
    said = []
    for own in seen:
        off = np.abs(own.fitted_s / own.measured_s - 1.0)
        said.append(
            f"{own.name}: {len(off)} rows, off by {np.median(off):.1%} (median), {np.quantile(off, 0.9):.1%} (p90)"
        )
    return "; ".join(said) + "."
