"""Tokens/s over batch sizes: of the whole batch, over plain decoding, and a user's beside a GPU's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from treeopt.answer import Estimate
from treeopt.planner.curves import AtSize, Curve, CurveOf
from treeopt.render.pictures.style import (
    RIVALS,
    Picture,
    at_batches,
    at_rates,
    ink,
    legend,
    new_axes,
    new_figure,
    short,
)
from treeopt.render.text import estimate, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Stroke(NamedTuple):
    """How a curve is drawn."""

    colour: str
    marker: str
    dash: str


def strokes(curves: Sequence[Curve]) -> list[Stroke]:
    """Each curve's own colour, marker and dash, so that it is told apart without colour too."""
    fixed = {CurveOf.PLAN: ("plan", "o", "-"), CurveOf.CHAIN: ("chain", "s", "--"), CurveOf.PLAIN: ("plain", "^", ":")}
    markers, rivals = ("D", "v", "P"), 0
    found = []
    for curve in curves:
        if curve.of is CurveOf.RIVAL:
            at = rivals % len(RIVALS)
            found.append(Stroke(ink(RIVALS[at]), markers[at], "-."))
            rivals += 1
        else:
            name, marker, dash = fixed[curve.of]
            found.append(Stroke(ink(name), marker, dash))
    return found


def rates_picture(curves: Sequence[Curve]) -> Picture:
    """Tokens/s of the whole batch."""
    figure = _over_batches(curves, lambda at: at.option.tokens_per_s, "tokens/s")
    return Picture("rates", "Tokens per second over batch size", _in_words(curves, _rate_words), figure)


def speedups_picture(curves: Sequence[Curve]) -> Picture:
    """Tokens/s over those of plain decoding."""
    told = [c for c in curves if c.of is not CurveOf.PLAIN]
    figure = _over_batches(told, lambda at: at.speedup, "over plain decoding", one=1.0)
    return Picture("speedups", "Speedup over plain decoding, by batch size", _in_words(told, _speedup_words), figure)


def _over_batches(
    curves: Sequence[Curve], value_of: Callable[[AtSize], Estimate | None], name: str, *, one: float | None = None
) -> Figure:
    """A line for each curve; of a single batch size the interval of each. `one` is what plain decoding has."""
    sizes = sorted({at.batch for curve in curves for at in curve.points})
    if len(sizes) == 1:
        return _at_one_size(curves, value_of, name, one)
    figure = new_figure(290)
    axes = new_axes(figure, x="running requests (batch)", y=name)
    _draw(axes, curves, value_of)
    if one is None:
        at_rates(axes)
    else:
        axes.axhline(one, color=ink("plain"), linewidth=1.2, linestyle=":")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    at_batches(axes, sizes)
    legend(figure, axes)
    return figure


def _at_one_size(
    curves: Sequence[Curve], value_of: Callable[[AtSize], Estimate | None], name: str, one: float | None
) -> Figure:
    """One below the other, with their names and intervals."""
    held = [(c, s, v) for c, s in zip(curves, strokes(curves), strict=True) for at in c.points if (v := value_of(at))]
    figure = new_figure(60 + 32 * len(held))
    axes = new_axes(figure, x=name, y="", box=(110, 42, 295, 12 + 32 * len(held)))
    for row, (_, stroke, value) in enumerate(held):
        if value.low is not None and value.high is not None:
            axes.plot([value.low, value.high], [row, row], color=stroke.colour, linewidth=1.8, alpha=0.55)
        axes.plot([value.value], [row], stroke.marker, color=stroke.colour, markersize=6)
    axes.set_yticks(range(len(held)), [curve.name for curve, _, _ in held], color=ink("ink"))
    axes.set_ylim(len(held) - 0.5, -0.5)
    axes.set_xlim(left=0)
    if one is not None:
        axes.axvline(one, color=ink("plain"), linewidth=1.2, linestyle=":")
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if one is None else f"{value:g}x")
    return figure


def pareto_picture(curves: Sequence[Curve], tp: int) -> Picture:
    """Tokens/s that one user sees beside those that one GPU gives: up and to the right is better."""
    figure = new_figure(312)
    axes = new_axes(figure, x="tokens/s of one user", y="tokens/s of one GPU", box=(60, 42, 350, 224))
    for curve, stroke in zip(curves, strokes(curves), strict=True):
        x = [at.per_user for at in curve.points]
        y = [at.option.tokens_per_s.value / tp for at in curve.points]
        drawn = axes.plot(x, y, stroke.dash, marker=stroke.marker, markersize=5, color=stroke.colour, label=curve.name)
        drawn[0].set_zorder(_above(curve))
        if curve.of in (CurveOf.PLAN, CurveOf.PLAIN):
            place = {CurveOf.PLAN: ((5, 5), "left"), CurveOf.PLAIN: ((-6, -11), "right")}[curve.of]
            for at, a, b in zip(curve.points, x, y, strict=True):
                axes.annotate(
                    str(at.batch),
                    (a, b),
                    place[0],
                    textcoords="offset points",
                    ha=place[1],
                    fontsize=9,
                    color=stroke.colour,
                )
    at_rates(axes)
    at_rates(axes, x=True)
    axes.margins(0.1)
    legend(figure, axes)
    return Picture("pareto", "Tokens per second of one user and of one GPU", _in_words(curves, _pareto_words), figure)


class _Held(NamedTuple):
    """A value that is drawn, at its batch size."""

    batch: int
    value: Estimate
    measured: bool


def _draw(axes: Axes, curves: Sequence[Curve], value_of: Callable[[AtSize], Estimate | None]) -> None:
    for curve, stroke in zip(curves, strokes(curves), strict=True):
        held = [_Held(at.batch, v, at.measured) for at in curve.points if (v := value_of(at)) is not None]
        if not held:
            continue
        if len(held) > 1:
            x, y = [at.batch for at in held], [at.value.value for at in held]
            axes.plot(x, y, stroke.dash, color=stroke.colour, linewidth=1.8, zorder=_above(curve))
        _intervals(axes, held, stroke, band=curve.of in (CurveOf.PLAN, CurveOf.PLAIN))
        _markers(axes, held, stroke, above=_above(curve))
        hollow = " (hollow: measured)" if curve.of is CurveOf.PLAN and any(at.measured for at in held) else ""
        name = f"{curve.name}{hollow}"
        axes.plot([], [], stroke.dash, marker=stroke.marker, markersize=4.5, color=stroke.colour, label=name)


def _intervals(axes: Axes, held: Sequence[_Held], stroke: Stroke, *, band: bool) -> None:
    """A band where there are several, and little else to cover."""
    ends = [(at.batch, v.low, v.high) for at in held if (v := at.value).low is not None and v.high is not None]
    if band and len(ends) > 1:
        x, low, high = zip(*ends, strict=True)
        axes.fill_between(list(x), list(low), list(high), color=stroke.colour, alpha=0.13, linewidth=0)


def _above(curve: Curve) -> float:
    """The plan is drawn over what it equals."""
    return 4.0 if curve.of is CurveOf.PLAN else 3.0


def _markers(axes: Axes, held: Sequence[_Held], stroke: Stroke, *, above: float) -> None:
    """What was measured is larger, and hollow."""
    for measured, size, fill in ((True, 7.0, ink("page")), (False, 4.5, stroke.colour)):
        shown = [(at.batch, at.value.value) for at in held if at.measured is measured]
        if shown:
            drawn = axes.plot(*zip(*shown, strict=True), stroke.marker, color=stroke.colour, markersize=size)[0]
            drawn.set(markerfacecolor=fill, markeredgewidth=1.6, zorder=above)


def _in_words(curves: Sequence[Curve], say: Callable[[AtSize], str | None]) -> str:
    said = []
    for curve in curves:
        points = [f"batch {at.batch}: {words}" for at in curve.points if (words := say(at)) is not None]
        said.append(f"{curve.name}: {'; '.join(points)}.")
    return " ".join(said)


def _rate_words(at: AtSize) -> str:
    return rate(at.option.tokens_per_s)


def _speedup_words(at: AtSize) -> str | None:
    return None if at.speedup is None else estimate(at.speedup)


def _pareto_words(at: AtSize) -> str:
    return f"{short(at.per_user)} a user, {rate(at.option.tokens_per_s)} in all"
