"""Plans as tables: a line per bucket, a draft at each batch size that it serves, a choice beside its alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from treeopt.draft_words import NODES, DraftWords
from treeopt.plan.plan import Plan
from treeopt.planner.wording import words_in
from treeopt.render.text import estimate, loss, ms, percent, plain_table, rate, speedup
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import Option
from treeopt.solve.weights import BatchWeight

# From this many columns on a terminal gets every number of a plan.
WIDE: Final = 130


def bucket_table(plan: Plan, width: int = WIDE) -> Table:
    """One line per bucket; a narrow terminal gets fewer columns rather than cut numbers."""
    words = words_in(plan)
    rows = [bucket_cells(bucket, plan, width, words) for bucket in plan.buckets]
    table = plain_table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    return table


def ends_line(plan: Plan) -> list[Text]:
    """What the stars of the table say, where there is one."""
    if not any(_ends(bucket, plan) for bucket in plan.buckets):
        return []
    depth = plan.sources.ranks.depth
    said = (
        f"* ends where the evidence ends, at depth {depth}: a deeper draft may gain more; record deeper guesses to tell"
    )
    return [Text(said)]


def _ends(bucket: Bucket, plan: Plan) -> bool:
    """Whether the evidence, and not the price, may have stopped the draft."""
    return bucket.speculate and bucket.depth == plan.sources.ranks.depth and plan.limits.max_depth != bucket.depth


def bucket_cells(b: Bucket, plan: Plan, width: int, words: DraftWords) -> dict[str, str]:
    """One line by column."""
    wide, several, limited = width >= WIDE, len(plan.contexts) > 1, plan.time_limit.limits
    tight = not wide and (several or limited or b.engine_loss is not None)  # no place for intervals
    yes, chain, time = b.speculate, b.best_chain, b.time_per_token
    cells = {"context": b.context.words} if several else {}
    cells |= {"batch": b.batches, words.column: (words.cell(b.draft) + "*" * _ends(b, plan)) if yes else "nothing"}
    if words.head == NODES.head and not (tight and limited):
        cells["depth"] = str(b.depth) if yes else ""
    cells["E"] = "" if not yes else f"{b.acceptance_length.value:.2f}" if tight else estimate(b.acceptance_length)
    if b.held_out_length is not None:
        cells["held-out E"] = f"{b.held_out_length.value:.2f}" if tight else estimate(b.held_out_length)
    if wide:
        known = yes and b.break_even_length is not None
        cells |= {"break-even E": f"{b.break_even_length:.2f}" if known else "", "step ms": ms(b.step_time_s)}
    if limited and time is not None:
        cells |= {"ms/token": ms(time.mean_s), "p99": ms(time.p99_s), "limit": "met" if b.meets_limit else "exceeded"}
    cells["tokens/s"] = rate(b.tokens_per_s)
    cells["speedup"] = speedup(b.speedup) if yes or tight else "do not speculate"
    if plan.loses_by_sharing and not tight:
        cells["range loses"] = loss(b.sharing_loss) if b.sharing_loss > 0.0005 else ""
    lost = b.engine_loss
    if lost is not None:
        cells["engine loses"] = "not known" if lost.share is None else loss(lost.share.value)
    if wide and lost is not None:
        best = lost.unrestricted
        cells["without it"] = "" if best is None else f"{rate(best.tokens_per_s)} ({words.size(best.nodes)})"
    elif wide:
        cells["best chain"] = f"{rate(chain.tokens_per_s)} (K={chain.num_speculative_tokens})" if chain.depth else ""
        cells["plain"] = "not known" if b.plain is None else rate(b.plain.tokens_per_s)
    return cells


def batches_table(bucket: Bucket, weights: Sequence[BatchWeight] = ()) -> Table:
    """One draft at every listed batch size that it serves, and what the best draft for that one alone would gain."""
    share = {weight.batch: f"{weight.share:.1%}" for weight in weights}
    table = plain_table("batch", *(["of the time"] if weights else []), "tokens/s", "speedup", "loses to its own best")
    for at in bucket.by_batch:
        gain = "-" if at.speedup is None else f"{at.speedup:.2f}x"
        of_time = [share.get(at.batch, "")] if weights else []
        table.add_row(str(at.batch), *of_time, f"{at.tokens_per_s:,.0f}", gain, loss(at.loss))
    return table


def alternatives(bucket: Bucket, words: DraftWords) -> Table:
    """The choice beside the runner-up, the best chain and plain decoding, at the bucket's largest batch."""
    table = plain_table(f"at batch {bucket.batch.max}", words.head, "depth", "E", "step ms", "tokens/s", "against it")
    chosen = "choice" if bucket.speculate else "choice: plain"
    E = estimate(bucket.acceptance_length) if bucket.speculate else "1.00"
    table.add_row(Text(chosen, style="bold green"), *_sizes(bucket.choice, E, words), "")
    told = {_sizes(bucket.choice, "", words)}
    others: list[tuple[str, Option | None]] = [("runner-up", bucket.runner_up), ("best chain", bucket.best_chain)]
    if bucket.engine_loss is not None:
        # A dynamic tree may yield more than any static one.
        free = "unrestricted" if bucket.dynamic is None else "any static tree"
        others = [(free, bucket.engine_loss.unrestricted), *others]
    if bucket.speculate:
        others.append(("plain decoding", bucket.plain))
    for name, option in others:
        if (
            option is not None
            and _sizes(option, "", words) not in told
            and (option.nodes > 1 or name == "plain decoding")
        ):
            E = f"{option.acceptance_length.value:.2f}"
            table.add_row(name, *_sizes(option, E, words), percent(-bucket.loss_of(option)))
            told.add(_sizes(option, "", words))
    return table


def _sizes(option: Option, E: str, words: DraftWords) -> tuple[str, ...]:
    return (str(words.count(option.nodes)), str(option.depth), E, ms(option.step_time_s), rate(option.tokens_per_s))
