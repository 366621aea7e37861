"""Why a tree has the size it has: node by node, and term by term."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from treeopt.cost.terms import ExpertVisits, Term
from treeopt.draft_words import DraftWords, K
from treeopt.planner.engine_room import EngineRoom
from treeopt.planner.explain import Addition, Explanation
from treeopt.render.bucket_table import WIDE
from treeopt.render.legend import legend
from treeopt.render.text import percent, plain_table, rate, words
from treeopt.solve.options import CostSensitivity
from treeopt.solve.problem import TIE

# Longer trees show their first and last nodes.
_SHOWN: Final = 24
_FIRST: Final = 14
_LAST: Final = 6
_NEXT: Final = 4
# Terms that add less than this share of a node's price are not named.
_NAMED_SHARE: Final = 0.1
_RIVALS: Final = (("runner-up", "flip_runner_up"), ("chain", "flip_best_chain"), ("plain", "flip_plain"))


def report(explanation: Explanation, width: int) -> RenderableType:
    """The whole explanation."""
    parts: list[RenderableType] = [
        _head(explanation),
        Text(),
        _nodes(explanation, width),
        legend(explanation.words, has_length=False),
    ]
    parts += [Text(), _stops(explanation)]
    if explanation.sensitivity is not None:
        parts += [
            Text(),
            _terms(explanation.sensitivity, width),
            Text(),
            _flips(explanation.sensitivity, explanation.words),
        ]
    if explanation.engine is not None:
        parts.append(_engine(explanation.engine, drafts=explanation.choice.nodes > 1))
    return Group(*parts)


def _head(e: Explanation) -> Text:
    text = Text(f"Batch {e.batch}, context {e.context}: ", style="bold")
    if not e.bucket.speculate:
        return text.append("do not speculate", style="bold yellow").append(
            f": {_ms(e.plain.step_time_s)} ms per step, {rate(e.plain.tokens_per_s)} tokens/s"
        )
    text.append(e.words.draft(e.bucket.draft), style="bold green")
    if e.bucket.dynamic is not None:
        text.append(" (explained: what it is on average confidence)", style="bold green")
    speedup = e.choice.tokens_per_s.value / e.plain.tokens_per_s.value
    return text.append(
        f": {e.choice.acceptance_length.value:.2f} tokens in {_ms(e.choice.step_time_s)} ms, "
        f"{rate(e.choice.tokens_per_s)} tokens/s, {speedup:.2f}x plain decoding{_anew(e)}"
    )


def _anew(e: Explanation) -> str:
    """What a dynamic tree yields beside the one that is explained, where that is another number."""
    planned = e.bucket.acceptance_length.value
    if e.bucket.dynamic is None or f"{planned:.2f}" == f"{e.choice.acceptance_length.value:.2f}":
        return ""
    return f"; chosen anew in every step it yields {planned:.2f}, as the plan says"


def _nodes(e: Explanation, width: int) -> Table:
    wide = width >= WIDE
    more = ["step ms"] if wide else []
    change = ["change"] if wide else []
    table = plain_table(e.words.head, "node", "gain", "needs", "+ms", *more, "tokens/s", *change, "what grows, ms")
    for column, most in ((table.columns[1], 17 if wide else 11), (table.columns[-1], 64 if wide else 31)):
        column.justify, column.overflow, column.max_width = "left", "ellipsis", most
    cells = [_ms(e.plain.step_time_s)] if wide else []
    table.add_row(str(e.words.count(1)), "root", "", "", "", *cells, rate(e.plain.tokens_per_s))
    shown, last = _shown(e), 0
    for i, addition in enumerate(e.additions):
        if i not in shown:
            continue
        if i > last + 1:
            table.add_row("...", style="dim")
        last = i
        above = e.additions[i - 1]
        before, visits = (e.plain, e.plain_experts) if i == 0 else (above.option, above.experts)
        gain = addition.tokens_per_s / before.tokens_per_s.value - 1.0
        table.add_row(
            str(e.words.count(addition.option.nodes)),
            ",".join(map(str, addition.path)),
            f"{addition.gain:.3f}",
            f"{max(addition.needed_gain, 0.0):.3f}",
            f"{addition.price_s * 1e3:+.3f}",
            *([_ms(addition.option.step_time_s)] if wide else []),
            rate(addition.option.tokens_per_s),
            *([percent(gain)] if wide else []),
            _grows(addition, visits, most=3 if wide else 1),
            style=("" if addition.pays else "yellow") if addition.chosen else "dim",
        )
    return table


def _shown(e: Explanation) -> set[int]:
    own = sum(addition.chosen for addition in e.additions)
    chosen = range(own) if own <= _SHOWN else [*range(_FIRST), *range(own - _LAST, own)]
    return {*chosen, *range(own, own + _NEXT)}


def _grows(addition: Addition, before: ExpertVisits | None, *, most: int) -> str:
    """The terms that a node adds to, with the experts that its tokens visit besides."""
    named = [g for g in addition.growth if abs(g.seconds) >= _NAMED_SHARE * abs(addition.price_s)][:most]
    parts = []
    for term, seconds in named:
        visits = ""
        if term == Term.EXPERTS and before is not None and addition.experts is not None:
            visits = f", {before.visited:.0f} to {addition.experts.visited:.0f} of {before.experts}"
        parts.append(f"{words(term)} {seconds * 1e3:+.2g}{visits}")
    return "; ".join(parts)


def _stops(e: Explanation) -> Text:
    """Where more nodes stop paying, and what would be faster here."""
    text, stop = (
        Text("'needs' is the gain in tokens per step from which on a node raises tokens/s. ", style="dim"),
        e.stop,
    )
    if stop is None:
        text.append("The evidence has no further node.", style="not dim")
    elif stop.pays:
        gain = stop.tokens_per_s / e.choice.tokens_per_s.value - 1.0
        beyond = " that the engine does not load" if e.words.head == K.head and any(stop.path) else ""
        text.append(
            f"One node more{beyond} would gain {gain:.2%} here" + (", a tie." if gain <= TIE else "."), style="not dim"
        )
    else:
        text.append(
            f"It stops at {e.words.size(e.choice.nodes)}: the next node costs {stop.price_s * 1e3:.2f} ms, needs "
            f"{stop.needed_gain:.3f} and gains {stop.gain:.3f}.",
            style="not dim",
        )
    free = "" if e.bucket.engine_loss is None else ", without the engine's limits,"
    for what, option in (("In this order", e.peak), (f"For this batch alone{free}", e.best_here)):
        gain = option.tokens_per_s.value / e.choice.tokens_per_s.value - 1.0
        if gain > TIE:
            size = "plain decoding" if option.nodes == 1 else f"{e.words.shape(option.nodes, option.depth)},"
            text.append(f"\n{what} {size} would be fastest: {gain:+.1%}.", style="not dim")
    if e.expected is not None and e.bucket.minimax is not None:
        mean = f"{e.expected.tokens_per_s:,.0f} tokens/s"
        text.append(f"\nOne draft serves all batch sizes: chosen by their weights, over which it gives {mean}.")
    if e.cliff is not None:
        text.append(f"\n{e.cliff[0].upper()}{e.cliff[1:]}.", style="not dim")
    return text


def _terms(sensitivity: CostSensitivity, width: int) -> Table:
    """The step by terms; columns that say nothing are left out, and a narrow terminal gets fewer."""
    terms, wide = sensitivity.terms, width >= WIDE
    total_s, plain_s = sum(t.step_s for t in terms), sum(t.plain_s for t in terms)
    rivals = [(name, key) for name, key in _RIVALS if any(getattr(t, key) is not None for t in terms)]
    measured = any(t.error_p90 is not None for t in terms)
    errors = ["error", "loses"] if measured else []
    plain = ["plain ms"] if wide else []
    table = plain_table("term", *plain, "step ms", "share", "grows ms", *errors, *(name for name, _ in rivals))
    for t in terms:
        cells = [f"{t.plain_s * 1e3:.3f}"] if wide else []
        cells += [f"{t.step_s * 1e3:.3f}", f"{t.step_s / total_s:.0%}", f"{(t.step_s - t.plain_s) * 1e3:+.3f}"]
        cells += [_share(t.error_p90), _share(t.regret)] if measured else []
        table.add_row(words(t.name), *cells, *(_factor(getattr(t, key)) for _, key in rivals))
    whole = [f"{plain_s * 1e3:.3f}"] if wide else []
    table.add_row("step", *whole, f"{total_s * 1e3:.3f}", "", f"{(total_s - plain_s) * 1e3:+.3f}", style="bold")
    return table


def _flips(sensitivity: CostSensitivity, how: DraftWords) -> Text:
    """What the terms say, in words."""
    text = Text(f"Most of the step: {words(sensitivity.largest_term)}.")
    if sensitivity.growing_term is not None:
        text.append(f" Grows most over plain decoding: {words(sensitivity.growing_term)}.")
    if any(getattr(t, key) is not None for t in sensitivity.terms for _, key in _RIVALS):
        text.append(" Last columns: that rival is as fast once the term takes so many times as long.", style="dim")
    worst = sensitivity.worst
    if worst is not None:
        text.append(
            f"\nWithin the measured errors the worst is {words(worst.term)} at {worst.factor:.2f}x: it loses "
            f"{worst.regret:.1%} to {how.rival(worst.nodes)}."
        )
    elif any(t.error_p90 is not None for t in sensitivity.terms):
        text.append("\nNo term, off by its measured p90 error, changes the answer.")
    else:
        text.append("\nNo measured error: what a wrong term would cost is not known.", style="dim")
    return text


def _engine(room: EngineRoom, *, drafts: bool) -> Text:
    """At how many milliseconds of the engine's another draft is as fast."""
    text = Text(f"Engine: priced with {room.added_ms:.2f} ms more in a speculative step than in a plain one. ")
    if not drafts:
        pays = "at no time" if room.runner_up_ms is None else f"below {room.runner_up_ms:.2f} ms"
        return text.append(f"The best draft would pay {pays}.")
    above = "at any time of it" if room.plain_ms is None else f"above {room.plain_ms:.2f} ms"
    text.append(f"Plain decoding wins {above}")
    if room.runner_up_ms is not None:
        side = "above" if room.runner_up_above else "below"
        text.append(f", the runner-up {side} {room.runner_up_ms:.2f} ms")
    return text.append(".")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _factor(factor: float | None) -> str:
    if factor is None:
        return ""
    if factor >= 100.0:
        return ">100x"
    return f"{factor:.2f}x" if factor >= 0.01 else "<0.01x"
