"""The tables of a plan's page, as text by column."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from treeopt.acceptance.rates import RankRates
from treeopt.answer import Estimate
from treeopt.draft_words import DraftWords
from treeopt.plan.plan import Plan
from treeopt.planner.compare import Comparison
from treeopt.planner.curves import AtSize, Curve
from treeopt.planner.frontier import Frontier
from treeopt.planner.roofline import WeightsRoofline
from treeopt.planner.wording import words_in
from treeopt.render.bucket_table import WIDE, bucket_cells
from treeopt.render.text import estimate, gain, ms, rate, room, speedup, words
from treeopt.solve.bucket import Bucket, Verdict
from treeopt.solve.options import CostSensitivity, Option


class PageTable(NamedTuple):
    """A table's columns and rows; `texts` are the columns that hold words and may be folded."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: frozenset[int] = frozenset()


def buckets_table(plan: Plan) -> PageTable:
    """What `treeopt search` prints at its widest, with the verdict."""
    how = words_in(plan)
    rows = [bucket_cells(bucket, plan, WIDE, how) for bucket in plan.buckets]
    columns = [*rows[0], "verdict"]
    verdicts = [bucket.verdict.value.replace("-", " ") for bucket in plan.buckets]
    return PageTable(columns, [[*row.values(), said] for row, said in zip(rows, verdicts, strict=True)])


def reasons_table(plan: Plan) -> PageTable:
    """Why each bucket's draft is as it is."""
    return PageTable(["batch", "why"], [[b.batches, b.reason] for b in plan.buckets], frozenset({1}))


def rates_table(curves: Sequence[Curve]) -> PageTable:
    """Tokens/s with intervals, a column for each curve."""
    return _over_batches(curves, lambda at: _rate(at.option.tokens_per_s))


def speedups_table(curves: Sequence[Curve]) -> PageTable:
    """Speedups with intervals, a column for each curve."""
    return _over_batches(curves, lambda at: speedup(at.speedup))


def pareto_table(curves: Sequence[Curve], tp: int) -> PageTable:
    """Tokens/s of one user, and of one GPU."""
    return _over_batches(curves, lambda at: f"{rate(at.per_user)} / {rate(at.option.tokens_per_s.value / tp)}")


def comparisons_table(found: Sequence[Comparison], how: DraftWords) -> PageTable:
    """The plan against each rival, as `treeopt compare` prints it."""
    rows = [
        [str(c.batch), c.rival, *_sizes(c.other, how), rate(c.plan.tokens_per_s), gain(c.gain), _verdict(c)]
        for c in found
    ]
    columns = ["batch", "against", how.head, "E", "tokens/s", "the plan's", "plan gains", "plan is"]
    return PageTable(columns, rows)


def _sizes(option: Option, how: DraftWords) -> list[str]:
    return [str(how.count(option.nodes)), f"{option.acceptance_length.value:.3f}", rate(option.tokens_per_s)]


def _verdict(c: Comparison) -> str:
    return c.verdict.value if c.gain.has_interval or not c.gain.value else "no interval"


def terms_table(buckets: Sequence[Bucket]) -> PageTable | None:
    """Milliseconds of every term, in the plan's step and in a plain one."""
    known = [(b, b.sensitivity.terms) for b in buckets if b.sensitivity is not None]
    if not known:
        return None
    rows = [
        [str(b.batch.max), words(t.name), ms(t.plain_s), ms(t.step_s), f"{1e3 * (t.step_s - t.plain_s):+.2f}"]
        for b, terms in known
        for t in terms
    ]
    return PageTable(["batch", "term", "plain ms", "step ms", "grows ms"], rows, frozenset({1}))


def frontier_table(found: Frontier, how: DraftWords) -> PageTable:
    """The best of every size."""
    rows = [
        [
            str(how.count(s.nodes)),
            f"{s.acceptance_length:.3f}",
            str(s.depth),
            "" if s.chain_length is None else f"{s.chain_length:.3f}",
        ]
        for s in found.sizes
    ]
    return PageTable([how.head, "E", "depth", "chain's E"], rows)


def sizes_table(found: Frontier, how: DraftWords) -> PageTable:
    """Tokens/s of the best of every size."""
    rows = [[str(how.count(s.nodes)), rate(s.tokens_per_s)] for s in found.sizes if s.tokens_per_s is not None]
    return PageTable([how.head, "tokens/s"], rows)


def roofline_table(found: WeightsRoofline, how: DraftWords) -> PageTable:
    """The plan's steps on the roofline."""
    rows = [
        [
            str(s.batch),
            "plain" if s.nodes == 1 else str(how.count(s.nodes)),
            f"{s.at.tokens:,}",
            rate(s.at.tokens_per_s),
        ]
        for s in found.steps
    ]
    return PageTable(["batch", how.head, "tokens", "tokens/s through the weights"], rows)


def acceptance_table(found: RankRates) -> PageTable:
    """Rates by depth, a column for each rank."""
    ranks = sorted({r.rank for r in found.rates})
    cells = {(r.depth, r.rank): estimate(r.rate) for r in found.rates}
    depths = sorted({r.depth for r in found.rates})
    rows = [[str(d), *(cells.get((d, r), "") for r in ranks)] for d in depths]
    return PageTable(["depth", *(f"guess {r + 1}" for r in ranks)], rows)


def changes_table(plan: Plan) -> PageTable | None:
    """What would change the answer, bucket by bucket; None where no step comes in terms and nothing is open."""
    how = words_in(plan)
    rows = [
        [b.batches, *_changes(b, how)]
        for b in plan.buckets
        if b.sensitivity is not None or b.verdict is Verdict.NOT_KNOWN
    ]
    if not rows:
        return None
    columns = ["batch", "plain decoding as fast if", "another draft as fast if", "within measured errors", "still open"]
    return PageTable(columns, rows, frozenset({1, 2, 3, 4}))


def _changes(bucket: Bucket, how: DraftWords) -> list[str]:
    sensitivity = bucket.sensitivity
    pays = "" if bucket.pays_if is None else f"pays {room(bucket.pays_if.extra_ms_below)}"
    still_open = "; ".join([*([pays] if pays else []), *(f"not measured: {run}" for run in bucket.missing)])
    if sensitivity is None:
        return ["", "", "", still_open]
    terms = sensitivity.terms
    plain = _nearest((t.name, t.flip_plain) for t in terms)
    other = _nearest((t.name, f) for t in terms for f in (t.flip_runner_up, t.flip_best_chain))
    return [plain, other, _worst(sensitivity, how), still_open]


def _nearest(flips: Iterable[tuple[str, float | None]]) -> str:
    """The smallest change of one term that turns the answer."""
    known = [(abs(math.log(factor)), name, factor) for name, factor in flips if factor is not None]
    if not known:
        return "no one term"
    _, name, factor = min(known)
    return f"{words(name)} took {factor:.2f}x" if factor < 100 else "no one term below 100x"


def _worst(sensitivity: CostSensitivity, how: DraftWords) -> str:
    worst = sensitivity.worst
    if worst is not None and worst.regret >= 0.0005:
        return f"{words(worst.term)} at {worst.factor:.2f}x loses {worst.regret:.1%} to {how.rival(worst.nodes)}"
    return "nothing changes" if any(t.error_p90 is not None for t in sensitivity.terms) else "no error was measured"


def _over_batches(curves: Sequence[Curve], say: Callable[[AtSize], str]) -> PageTable:
    batches = sorted({at.batch for curve in curves for at in curve.points})
    cells = {(curve.name, at.batch): say(at) for curve in curves for at in curve.points}
    rows = [[str(b), *(cells.get((curve.name, b), "") for curve in curves)] for b in batches]
    return PageTable(["batch", *(curve.name for curve in curves)], rows)


def _rate(number: Estimate) -> str:
    if number.low is None or number.high is None:
        return rate(number)
    return f"{rate(number)} [{rate(number.low)}, {rate(number.high)}]"
