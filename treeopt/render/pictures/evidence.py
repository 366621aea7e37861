"""What was measured about acceptance, and what more nodes would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treeopt.acceptance.rates import RankRates
from treeopt.draft_words import DraftWords
from treeopt.planner.frontier import Frontier
from treeopt.render.pictures.style import WIDTH, Picture, at_rates, ink, legend, new_axes, new_figure
from treeopt.render.text import estimate, rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RANK_INKS = ("plan", "chain", "rival-2", "rival-1", "rival-3", "term-3", "term-8", "plain")
_DRAWN = 4  # guesses; the table has all
_MARKERS = "osD^vPX*"


def acceptance_picture(found: RankRates, number: int = 0) -> Picture:
    """How often each rank was right at each depth, after right first guesses, with intervals."""
    figure = new_figure(280)
    axes = new_axes(figure, x="depth", y="right", box=(56, 42, WIDTH - 66, 196))
    ranks = sorted({r.rank for r in found.rates})[:_DRAWN]
    spread = 0.5 / max(len(ranks), 1)
    for rank in ranks:
        own = [r for r in found.rates if r.rank == rank]
        colour = ink(_RANK_INKS[rank % len(_RANK_INKS)])
        x = [r.depth + spread * (rank - (len(ranks) - 1) / 2) for r in own]
        axes.plot(
            x, [r.rate.value for r in own], _MARKERS[rank % 8], color=colour, markersize=4.5, label=f"guess {rank + 1}"
        )
        for at, r in zip(x, own, strict=True):
            if r.rate.low is not None and r.rate.high is not None:
                axes.plot([at, at], [r.rate.low, r.rate.high], color=colour, linewidth=1.6, alpha=0.6)
    depths = sorted({r.depth for r in found.rates})
    axes.set_xticks(depths)
    axes.set_xlim(0.5, depths[-1] + 0.5)
    axes.set_ylim(0, min(1.02, 1.08 * max(r.rate.high or r.rate.value for r in found.rates)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    legend(figure, axes, columns=4)
    said = "; ".join(f"depth {r.depth}, guess {r.rank + 1}: {estimate(r.rate)}" for r in found.rates)
    return Picture(f"acceptance-{number}", f"How often each guess was right: {found.name}", f"{said}.", figure)


def frontier_picture(found: Frontier, how: DraftWords) -> Picture:
    """The most tokens per step that drafts of each size give, with the plan's own."""
    figure = new_figure(290)
    axes = new_axes(figure, x=f"{how.head} per request", y="tokens per step", box=(56, 42, WIDTH - 66, 206))
    sizes = [s for s in found.sizes if s.nodes > 1]
    chains = [(how.count(s.nodes), s.chain_length) for s in sizes if s.chain_length is not None]
    axes.plot(
        [how.count(s.nodes) for s in sizes],
        [s.acceptance_length for s in sizes],
        color=ink("plan"),
        label="best of that size",
    )
    if chains:
        axes.plot(*zip(*chains, strict=True), "--", color=ink("chain"), label="chain")
    for chosen in found.chosen:
        held = chosen.acceptance_length
        if held.low is not None and held.high is not None:
            axes.plot([how.count(chosen.nodes)] * 2, [held.low, held.high], color=ink("ink"), linewidth=1.4, alpha=0.6)
    axes.plot(
        [how.count(c.nodes) for c in found.chosen], [c.acceptance_length.value for c in found.chosen], "o",
        color=ink("ink"), markersize=4.5, label="the plan",
    )  # fmt: skip
    if found.ends_at is not None and sizes:
        last = how.count(sizes[-1].nodes)
        axes.axvspan(how.count(found.ends_at), last, color=ink("line"), alpha=0.45, linewidth=0)
        axes.annotate(
            f"evidence ends at depth {found.evidence_depth}", (last, 1), (-3, 4), textcoords="offset points",
            ha="right", fontsize=9, color=ink("muted"),
        )  # fmt: skip
    axes.set_ylim(bottom=1)
    _whole(axes)
    legend(figure, axes)
    return Picture("frontier", f"Tokens per step over {how.head}", _frontier_words(found, how), figure)


def sizes_picture(found: Frontier, how: DraftWords) -> Picture | None:
    """The tokens/s that the best drafts of each size give at the frontier's batch; None where none has a step time."""
    known = [(how.count(s.nodes), s.tokens_per_s) for s in found.sizes if s.tokens_per_s is not None]
    if len(known) < 2:
        return None
    figure = new_figure(290)
    axes = new_axes(
        figure, x=f"{how.head} per request, at batch {found.batch}", y="tokens/s", box=(60, 42, WIDTH - 70, 206)
    )
    axes.plot(*zip(*known, strict=True), color=ink("plan"), label="best of that size")
    plain = [r for n, r in known if n == how.count(1)]
    if plain:
        axes.axhline(plain[0], color=ink("plain"), linestyle=":", label="plain decoding")
    own = next(c for c in found.chosen if c.batch == found.batch)
    at = [(n, r) for n, r in known if n == how.count(own.nodes)]
    if at:
        axes.plot(*zip(*at, strict=True), "o", color=ink("ink"), markersize=5, label="the plan")
    at_rates(axes)
    _whole(axes)
    legend(figure, axes)
    said = "; ".join(f"{how.size(n + how.uncounted)}: {rate(r)}" for n, r in known)
    return Picture("sizes", f"Tokens per second over {how.head}, at batch {found.batch}", said, figure)


def _whole(axes: Axes) -> None:
    """There are no half nodes."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _frontier_words(found: Frontier, how: DraftWords) -> str:
    said = [f"{how.size(s.nodes)}: {s.acceptance_length:.2f}" for s in found.sizes]
    chosen = [f"batch {c.batch}: {how.size(c.nodes)}, {estimate(c.acceptance_length)}" for c in found.chosen]
    return f"At batch {found.batch} the most is {'; '.join(said)}. The plan: {'; '.join(chosen)}."
