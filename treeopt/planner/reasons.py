"""What a plan says in words: why each tree, how good it may be at most, and what its reader must know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

from treeopt.answer import Note
from treeopt.cost import break_even_batch
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Chains
from treeopt.draft_words import DraftWords, K, words_for
from treeopt.plan.sources import RanksSource
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import batches_in_words
from treeopt.solve.options import CostSensitivity, Option
from treeopt.solve.problem import TIE, Objective, Problem
from treeopt.solve.time_limit import TimeLimit
from treeopt.solve.weights import expected

# A note names so many buckets.
_NAMED: Final = 8
_NUMBER: Final = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")


def wide_ranges(buckets: Sequence[Bucket], problem: Problem) -> list[str]:
    """The buckets whose two ends lose more by sharing a tree than was allowed."""
    wide = [b for b in buckets if b.serves_several and b.sharing_loss > problem.sharing.most]
    if not wide:
        return []
    several = len({b.context for b in buckets}) > 1
    ranges = ", ".join(_range(b, with_context=several) for b in wide[:_NAMED])
    others = f" and {len(wide) - _NAMED} more" if len(wide) > _NAMED else ""
    most = max(b.sharing_loss for b in wide)
    more = "batch sizes or contexts" if several else "batch sizes"
    return [f"in {ranges}{others} one tree serves both ends and loses up to {most:.1%}: list more {more}"]


def _range(bucket: Bucket, *, with_context: bool) -> str:
    return f"{bucket.batches} at context {bucket.context.words}" if with_context else bucket.batches


def within_limits(buckets: Sequence[Bucket], limit: TimeLimit) -> list[str]:
    """The largest listed batch size within the limits on the time per token, for every range of contexts."""
    if not limit.limits:
        return []
    notes = []
    for context in dict.fromkeys(b.context for b in buckets):
        within = [b for b in buckets if b.context == context and b.meets_limit]
        at = f"at context {context.max} " if buckets[-1].context != buckets[0].context else ""
        if within:
            best = within[-1]
            notes.append(
                f"{at}the largest listed batch within the limit of {_limit_words(limit)} is {best.batch.max}: "
                f"{best.tokens_per_s.value:,.0f} tokens/s{_documents_words(best, limit)}"
            )
    return notes


def _documents_words(bucket: Bucket, limit: TimeLimit) -> str:
    """That real documents wait longer than the limit on the 99th percentile, which takes steps as independent."""
    documents_s = None if bucket.time_per_token is None else bucket.time_per_token.documents_p99_s
    if limit.max_p99_s is None or documents_s is None or documents_s <= limit.max_p99_s:
        return ""
    return f"; that takes steps as independent, 1 % of these documents wait {documents_s * 1e3:.2f} ms and more"


def _limit_words(limit: TimeLimit) -> str:
    words = [f"{limit.max_mean_s * 1e3:g} ms per token on average"] if limit.max_mean_s is not None else []
    words += [f"{limit.max_p99_s * 1e3:g} ms for 99 % of requests"] if limit.max_p99_s is not None else []
    return " and ".join(words)


@runtime_checkable
class SteppedCost(Protocol):
    """A step time that knows where it jumps."""

    def cliff(self, tokens: int) -> str | None:
        """A sentence where a step of `tokens` is at a jump or spike of what was measured."""


def cliff(cost: StepCost, tokens: int) -> str | None:
    """That a step of `tokens` is just before or past a jump of its time, if it is."""
    return cost.cliff(tokens) if isinstance(cost, SteppedCost) else None


def cliffs(buckets: Sequence[Bucket], cost: StepCost) -> list[str]:
    """The jumps beside which several buckets' steps are, each with its batch sizes; one bucket's reason has its own."""
    found: dict[str, dict[str, None]] = {}
    for bucket in buckets if len(buckets) > 1 else ():
        said = cliff(cost, bucket.verified_tokens)
        if said is not None:
            found.setdefault(said, {})[batches_in_words(*bucket.batch)] = None
    notes = [f"{', '.join(where)}: {said}" for said, where in found.items()]
    more = [f"{len(notes) - _NAMED} more such jumps; `treeopt explain` tells"] if len(notes) > _NAMED else []
    return notes[:_NAMED] + more


def furthest(notes: Iterable[Note]) -> list[Note]:
    """The notes, of those that differ in nothing but numbers the one with the largest."""
    found: dict[str, tuple[list[float], Note]] = {}
    for note in notes:
        numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(note.text)]
        kind = _NUMBER.sub("", note.text)
        found[kind] = max(found.get(kind, (numbers, note)), (numbers, note), key=lambda pair: pair[0])
    return [note for _, note in found.values()]


def over_limit(bucket: Bucket, limit: TimeLimit) -> list[str]:
    """That nothing stays within the limits at all of the range, if so."""
    time = bucket.time_per_token
    if bucket.meets_limit is not False or time is None:
        return []
    took = f"{time.mean_s * 1e3:.2f} ms per token on average, {time.p99_s * 1e3:.2f} ms for 99 % of requests"
    if bucket.serves_several:
        return [
            f"nothing was found within {_limit_words(limit)} at both ends of this range: this one loses least there, "
            f"{took} at its largest; list more batch sizes, or use a smaller batch"
        ]
    return [f"nothing was found within {_limit_words(limit)}: this is the quickest per token, {took}"]


def misjudged(sensitivity: CostSensitivity | None, words: DraftWords) -> list[str]:
    """The error of the step time that changes the answer by more than a tie, if one does."""
    worst = None if sensitivity is None else sensitivity.worst
    if worst is None or worst.regret <= TIE:
        return []
    term = worst.term.replace("_", " ")
    return [
        f"if {term} took {worst.factor:.2f}x as long, within its measured error, this would lose {worst.regret:.1%} to "
        f"{words.rival(worst.nodes)}"
    ]


def reason(
    bucket: Bucket, problem: Problem, ridge_tokens: float, ranks: RanksSource, *, one_for_all: bool
) -> list[str]:
    """Why this draft, in a few sentences, with the next step where there is one.

    Args:
        bucket: the answer.
        problem: what was asked.
        ridge_tokens: tokens per step at which weights and arithmetic take equally long.
        ranks: how far the evidence reaches.
        one_for_all: the engine has one setting, so more batch sizes in the list would not help.
    """
    words = words_for(problem.family, [bucket.draft])
    if not bucket.speculate:
        return [_why_not(bucket, ranks, words), *_over_weights(bucket, problem, words)]
    parts = [_no_plain(bucket) if bucket.plain is None else _price(bucket, ridge_tokens, words)]
    parts += _slower(bucket, problem, one_for_all)
    largest = max(bucket.choice.nodes, bucket.runner_up.nodes if bucket.runner_up else 1)
    if largest == problem.limits.max_nodes:
        parts.append(f"the cap --max-nodes {problem.limits.max_nodes} binds: a larger tree may gain more")
    parts += _passed_over(bucket, problem, words)
    parts += _over_weights(bucket, problem, words)
    parts += _shared(bucket, problem, one_for_all)
    if bucket.choice.depth == ranks.depth and problem.caps.max_depth != ranks.depth:
        parts.append(f"the evidence ends at depth {ranks.depth}: a deeper tree may gain more")
    return [*parts, *_chain(bucket, problem, ranks)]


def _price(bucket: Bucket, ridge_tokens: float, words: DraftWords) -> str:
    nodes, tokens = bucket.choice.nodes, bucket.verified_tokens
    side = "under" if tokens <= ridge_tokens else "over"
    return (
        f"{tokens} verified tokens per step, {side} the ridge of {ridge_tokens:.0f} (with {words.size(nodes)} "
        f"up to batch {break_even_batch(ridge_tokens, nodes)}): the step takes {bucket.break_even_length:.2f}x a plain "
        f"one and yields {bucket.acceptance_length.value:.2f} tokens"
    )


def _no_plain(bucket: Bucket) -> str:
    return (
        f"the fastest of what was measured; plain decoding was not measured at batch {bucket.batch.max}, so whether "
        "speculation pays is not known: run it without speculation (K = 0)"
    )


def _slower(bucket: Bucket, problem: Problem, one_for_all: bool) -> list[str]:
    """That plain decoding is faster at all of the range, or at its small end."""
    if bucket.speedup is None or bucket.speedup_at_min is None:
        return []
    parts = []
    if problem.objective is Objective.LENGTH and bucket.speedup.value < 1.0:
        parts.append("plain decoding is faster here: use --objective throughput to let it win")
    if bucket.speedup_at_min < 1.0 <= bucket.speedup.value:
        parts.append(
            f"at batch {bucket.batch.min} it is slower than plain decoding ({bucket.speedup_at_min:.2f}x)"
            + ("" if one_for_all else ": list more batch sizes")
        )
    return parts


def _over_weights(bucket: Bucket, problem: Problem, words: DraftWords) -> list[str]:
    """What one draft gives over the weights of batch sizes, and the one whose largest loss is smallest beside it."""
    mean, even = expected(problem.weights, bucket.by_batch), bucket.minimax
    if mean is None or even is None:
        return []
    over = "" if mean.speedup is None else f", {mean.speedup:.2f}x plain decoding"
    said = f"one draft for all: {mean.tokens_per_s:,.0f} tokens/s over the weights of batch sizes{over}"
    if even.option.draft == bucket.draft:
        return [f"{said}; its largest loss at any of them is the smallest too ({even.loss:.1%})"]
    loss = max(at.loss for at in bucket.by_batch)
    return [
        f"{said}, and {loss:.1%} lost at one of them; {words.draft(even.option.draft)} would lose {even.loss:.1%} at "
        f"most and give {even.mean_tokens_per_s:,.0f} tokens/s"
    ]


def _shared(bucket: Bucket, problem: Problem, one_for_all: bool) -> list[str]:
    """What sharing costs: at a listed batch size so that fewer ranges change, at an end more than was allowed."""
    parts = []
    if bucket.changes_loss > TIE and not one_for_all:
        worst = max(bucket.by_batch, key=lambda at: at.loss)
        parts.append(f"so that fewer ranges change, batch {worst.batch} loses {worst.loss:.1%} to its own best one")
    loss = bucket.sharing_loss
    if not bucket.serves_several or loss <= problem.sharing.most:
        return parts
    if one_for_all:
        return [*parts, f"one setting serves all: an end of the range loses {loss:.1%} to its own best one"]
    contexts = " or contexts" if bucket.context.min < bucket.context.max else ""
    return [*parts, f"an end of this range loses {loss:.1%} against its own best: list more batch sizes{contexts}"]


def _chain(bucket: Bucket, problem: Problem, ranks: RanksSource) -> list[str]:
    """How the best chain compares, where a tree was possible at all."""
    if isinstance(problem.family, Chains):
        return []
    if not ranks.knows_widths:
        return ["whether a tree would gain more is not known: no widths in the ranks"]
    if bucket.dynamic is None and bucket.tree.is_chain:
        return ["the best tree is a chain"] if problem.objective is Objective.THROUGHPUT else []
    loss = None if bucket.best_chain is None else bucket.loss_of(bucket.best_chain)
    if bucket.best_chain is None or loss is None or not 0.0 <= loss < 0.03:
        return []
    return [f"a chain of {bucket.best_chain.depth} loses only {loss:.1%}"]


def _passed_over(bucket: Bucket, problem: Problem, words: DraftWords) -> list[str]:
    """The faster draft that the tie rules passed over, if there is one."""
    other = bucket.runner_up
    if other is None or bucket.loss_of(other) >= 0.0 or problem.objective is Objective.LENGTH:
        return []
    gain, said = (
        -bucket.loss_of(other),
        "plain decoding" if other.nodes == 1 else words.size(other.nodes),
    )
    if gain > TIE and bucket.serves_several:
        by_batch = bucket.batch.min != bucket.batch.max
        here, there = (f"batch {b}" if by_batch else f"context {c}" for b, c in bucket.ends)
        return [f"{said} would gain {gain:.1%} at {here}, and lose at {there}"]
    return [f"{said} would gain {gain:.1%}, " + ("a tie" if gain <= TIE else "which this evidence cannot tell")]


def _why_not(bucket: Bucket, ranks: RanksSource, words: DraftWords) -> str:
    other = bucket.runner_up or bucket.best_chain
    if other is None or other.nodes == 1:
        return "the limits leave no tree to verify"
    chain = words.head == K.head or not ranks.knows_widths
    best = f"the best chain (K = {other.depth})" if chain else f"the best tree ({words.size(other.nodes)})"
    needed, tokens = _needed(other, bucket), other.acceptance_length.value
    if tokens > needed:
        return f"do not speculate: {best} gains only {tokens / needed - 1.0:.2%}, less than the tie margin"
    return f"do not speculate: {best} must yield {needed:.2f} tokens per step to pay and yields {tokens:.2f}"


def _needed(other: Option, plain: Bucket) -> float:
    return other.step_time_s / plain.step_time_s
