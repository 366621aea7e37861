"""Where the time of a step goes: its terms beside those of a plain step, and its tokens on the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from treeopt.cost.terms import Term
from treeopt.draft_words import DraftWords
from treeopt.planner.roofline import WeightsRoofline
from treeopt.render.pictures.style import TERMS, WIDTH, Picture, at_rates, ink, legend, new_axes, new_figure, short
from treeopt.render.text import ms, words
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import TermSensitivity

_LEGEND_ROW = 17  # pixels


def terms_picture(buckets: Sequence[Bucket]) -> Picture | None:
    """Each bucket's step as stacked terms, plain decoding on the left of it; None where no step comes in terms."""
    known = [(b, b.sensitivity.terms) for b in buckets if b.sensitivity is not None]
    if not known:
        return None
    names = [term.value for term in Term if any(t.name == term for _, terms in known for t in terms)]
    rows = -(-len(names) // 4)
    height = 268 + rows * _LEGEND_ROW
    figure = new_figure(height)
    axes = new_axes(figure, x="batch: plain step left, the plan's right", y="ms", box=(48, 42, WIDTH - 58, 210))
    bars = [bar for i, (bucket, terms) in enumerate(known) for bar in _bars(i, bucket, terms)]
    places, bottom = [bar.at for bar in bars], np.zeros(len(bars))
    for name, colour in zip(names, TERMS, strict=False):
        tops = np.array([bar.milliseconds.get(name, 0.0) for bar in bars])
        colours = [(ink(colour), bar.alpha) for bar in bars]
        axes.bar(places, tops, 0.36, bottom=bottom, color=colours, linewidth=0)
        axes.bar(0, 0, color=ink(colour), label=words(name))
        bottom = bottom + tops
    axes.set_xticks(range(len(known)), [str(b.batch.max) for b, _ in known])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    legend(figure, axes, columns=4)
    return Picture("terms", "Where the time of a step goes", _terms_words(known), figure)


def roofline_picture(found: WeightsRoofline, how: DraftWords) -> Picture:
    """Tokens per second through the weights over the tokens of a step: what bounds them, and the plan's steps."""
    figure = new_figure(300)
    axes = new_axes(figure, x="tokens in a step", y="tokens/s through the weights", box=(60, 42, WIDTH - 70, 206))
    last = found.curve[-1].tokens
    if found.memory_s is not None and found.token_s is not None:
        ridge = found.memory_s / found.token_s
        axes.plot(
            [1, ridge, max(last, ridge)],
            [1 / found.memory_s, 1 / found.token_s, 1 / found.token_s],
            color=ink("muted"),
            linewidth=1.2,
            label="memory, then arithmetic",
        )
        axes.axvline(ridge, color=ink("line"), linewidth=1)
        axes.annotate(
            f"ridge {ridge:,.0f}", (ridge, 1 / found.memory_s), (-4, 2), textcoords="offset points", ha="right",
            fontsize=9, color=ink("muted"),
        )  # fmt: skip
    axes.plot(*zip(*found.curve, strict=True), color=ink("plan"), linewidth=1.6, alpha=0.55, label="as priced")
    for plain in (True, False):
        shown = [step.at for step in found.steps if (step.nodes == 1) is plain]
        if shown:
            axes.plot(
                *zip(*shown, strict=True),
                "^" if plain else "o",
                color=ink("plain" if plain else "plan"),
                markersize=5,
                label="plain steps" if plain else "the plan's steps",
            )
    at_rates(axes)
    at_rates(axes, x=True)
    legend(figure, axes, columns=2)
    return Picture(
        "roofline", "The plan's steps on the roofline of the target's weights", _roofline_words(found, how), figure
    )


class _Bar(NamedTuple):
    """A step as it is stacked."""

    at: float
    milliseconds: dict[str, float]
    alpha: float


def _bars(i: int, bucket: Bucket, terms: Sequence[TermSensitivity]) -> Iterator[_Bar]:
    apart = 0.2 if bucket.speculate else 0.0
    yield _Bar(i - apart, {t.name: 1e3 * t.plain_s for t in terms}, 0.6)
    if bucket.speculate:
        yield _Bar(i + apart, {t.name: 1e3 * t.step_s for t in terms}, 1.0)


def _terms_words(known: Sequence[tuple[Bucket, Sequence[TermSensitivity]]]) -> str:
    said = []
    for bucket, terms in known:
        parts = [f"{words(t.name)} {ms(t.step_s)} ms" for t in terms]
        plain = sum(t.plain_s for t in terms)
        said.append(f"Batch {bucket.batch.max}: plain step {ms(plain)} ms; the plan's: {', '.join(parts)}.")
    return " ".join(said)


def _roofline_words(found: WeightsRoofline, how: DraftWords) -> str:
    steps = [
        f"batch {s.batch}, {'plain' if s.nodes == 1 else how.size(s.nodes)}: {s.at.tokens:,} tokens, "
        f"{short(s.at.tokens_per_s)} tokens/s"
        for s in found.steps
    ]
    ridge = "" if found.ridge_tokens is None else f"The ridge is at {found.ridge_tokens:,.0f} tokens. "
    return f"{ridge}{'; '.join(steps)}."
