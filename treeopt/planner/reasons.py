"""What a plan says in words: why each tree, how good it may be at most, and what its reader must know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

from treeopt.answer import Note
from treeopt.cost import break_even_batch
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import Chains
from treeopt.plan.sources import RanksSource
from treeopt.solve.bucket import CostSensitivity, Optimality
from treeopt.solve.buckets import batches_in_words
from treeopt.solve.fixed_point import Settled
from treeopt.solve.problem import TIE, Objective
from treeopt.solve.result import Choice
from treeopt.solve.time_limit import TimeLimit

# A note names so many buckets.
_NAMED: Final = 8
_NUMBER: Final = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")


def wide_ranges(settled: Sequence[Settled]) -> list[str]:
    """The buckets whose two ends lose more by sharing a tree than was allowed."""
    wide = [s for s in settled if len(s.question.ends) > 1 and s.choice.sharing_loss > s.question.sharing.max_loss]
    if not wide:
        return []
    several = len({s.question.context for s in settled}) > 1
    ranges = ", ".join(_range(s, with_context=several) for s in wide[:_NAMED])
    others = f" and {len(wide) - _NAMED} more buckets" if len(wide) > _NAMED else ""
    most = max(s.choice.sharing_loss for s in wide)
    more = "batch sizes or contexts" if several else "batch sizes"
    return [f"in {ranges}{others} one tree serves both ends and loses up to {most:.1%}: list more {more}"]


def _range(settled: Settled, *, with_context: bool) -> str:
    low, high = settled.question.ends[0], settled.question.ends[-1]
    batches = str(high.batch) if low.batch == high.batch else f"{low.batch}-{high.batch}"
    if not with_context:
        return batches
    return f"{batches} at context {high.context if low.context == high.context else f'{low.context}-{high.context}'}"


def within_limits(settled: Sequence[Settled]) -> list[str]:
    """The largest listed batch size within the limits on the time per token, for every range of contexts."""
    limit = settled[0].question.time_limit
    if not limit.limits:
        return []
    notes = []
    for context in dict.fromkeys(s.question.context for s in settled):
        within = [s for s in settled if s.question.context == context and s.choice.meets_limit]
        at = f"at context {context} " if settled[-1].question.context != settled[0].question.context else ""
        if within:
            best = within[-1]
            notes.append(
                f"{at}the largest listed batch within the limit of {_limit_words(limit)} is {best.choice.batch_max}: "
                f"{best.choice.best.tokens_per_s:,.0f} tokens/s{_documents_words(best)}"
            )
        else:
            smaller = ": list smaller ones" if min(s.choice.batch_max for s in settled) > 1 else ""
            notes.append(f"{at}no listed batch stays within {_limit_words(limit)}{smaller}")
    return notes


def _documents_words(settled: Settled) -> str:
    """That real documents wait longer than the limit on the 99th percentile, which takes steps as independent."""
    limit_s, documents_s = settled.question.time_limit.max_p99_s, settled.time_per_token.documents_p99_s
    if limit_s is None or documents_s is None or documents_s <= limit_s:
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


def cliffs(settled: Sequence[Settled], cost: StepCost) -> list[str]:
    """The jumps beside which several buckets' steps are, each with its batch sizes; one bucket's reason has its own."""
    found: dict[str, dict[str, None]] = {}
    for s in settled if len(settled) > 1 else ():
        said = cliff(cost, s.choice.tokens_per_step)
        if said is not None:
            found.setdefault(said, {})[batches_in_words(s.choice.batch_min, s.choice.batch_max)] = None
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


def optimality(settled: Settled) -> Optimality:
    """Whether the search found the best draft, and by how much any other could be better than the chosen one."""
    choice = settled.choice
    gap = choice.gap
    if len(settled.question.ends) > 1 and choice.sharing_loss > TIE:
        gap = (1.0 + gap) / (1.0 - choice.sharing_loss) - 1.0
    if choice.runner_up is not None:  # passed over as a tie, or as what the evidence cannot tell
        gap = max(gap, (1.0 + choice.gap) * (1.0 - choice.runner_up.loss) - 1.0)
    return Optimality(exact=choice.gap == 0.0, gap=gap)


def over_limit(settled: Settled) -> list[str]:
    """That nothing stays within the limits, if so."""
    if settled.choice.meets_limit:
        return []
    time, limit = settled.time_per_token, _limit_words(settled.question.time_limit)
    if len(settled.question.ends) > 1:
        return [
            f"nothing was found within {limit} at both ends of this range: this one loses least there, "
            f"{time.mean_s * 1e3:.2f} ms per token on average at its largest, {time.p99_s * 1e3:.2f} ms for 99 % of "
            "requests; list more batch sizes, or use a smaller batch"
        ]
    return [
        f"no tree was found within {limit}, nor is plain decoding: this is the "
        f"quickest per token, {time.mean_s * 1e3:.2f} ms on average, {time.p99_s * 1e3:.2f} ms for 99 % of requests"
        + ("; use a smaller batch" if settled.choice.batch_max > 1 else "")
    ]


def misjudged(sensitivity: CostSensitivity | None) -> list[str]:
    """The error of the step time that changes the answer by more than a tie, if one does."""
    worst = None if sensitivity is None else sensitivity.worst
    if worst is None or worst.regret <= TIE:
        return []
    other = "plain decoding" if worst.nodes == 1 else f"a tree of {worst.nodes} nodes"
    term = worst.term.replace("_", " ")
    return [
        f"if {term} took {worst.factor:.2f}x as long, within its measured error, this would lose {worst.regret:.1%} to "
        f"{other}"
    ]


def reason(
    settled: Settled, ridge_tokens: float, ranks: RanksSource, *, plain_known: bool, one_for_all: bool
) -> list[str]:
    """Why this draft, in a few sentences, with the next step where there is one.

    Args:
        settled: the answer.
        ridge_tokens: tokens per step at which weights and arithmetic take equally long.
        ranks: how far the evidence reaches.
        plain_known: whether plain decoding has a time of its own to judge by.
        one_for_all: the engine has one setting, so more batch sizes in the list would not help.
    """
    choice, question = settled.choice, settled.question
    if not choice.speculate:
        return [_why_not(choice, ranks)]
    parts = [_price(choice, ridge_tokens) if plain_known else _no_plain(choice)]
    if plain_known:
        parts += _slower(settled, one_for_all)
    largest = max(choice.best.nodes, choice.runner_up.option.nodes if choice.runner_up else 1)
    if largest == question.limits.max_nodes:
        parts.append(f"the cap --max-nodes {question.limits.max_nodes} binds: a larger tree may gain more")
    parts += _passed_over(settled)
    parts += _shared(settled, one_for_all)
    if choice.best.depth == ranks.depth and question.limits.max_depth != ranks.depth:
        parts.append(f"the evidence ends at depth {ranks.depth}: a deeper tree may gain more")
    return [*parts, *_chain(settled, ranks)]


def _price(choice: Choice, ridge_tokens: float) -> str:
    best = choice.best
    side = "under" if choice.tokens_per_step <= ridge_tokens else "over"
    return (
        f"{choice.tokens_per_step} verified tokens per step, {side} the ridge of {ridge_tokens:.0f} ({best.nodes} "
        f"nodes stay under it up to batch {break_even_batch(ridge_tokens, best.nodes)}): the step takes "
        f"{choice.break_even_tokens:.2f}x a plain one and yields {best.expected_tokens:.2f} tokens"
    )


def _no_plain(choice: Choice) -> str:
    return (
        f"the fastest of what was measured; plain decoding was not measured at batch {choice.batch_max}, so whether "
        "speculation pays is not known: run it without speculation (K = 0)"
    )


def _slower(settled: Settled, one_for_all: bool) -> list[str]:
    """That plain decoding is faster at all of the range, or at its small end."""
    choice, parts = settled.choice, []
    if settled.question.objective is Objective.LENGTH and choice.best.tokens_per_s < choice.plain.tokens_per_s:
        parts.append("plain decoding is faster here: use --objective throughput to let it win")
    if choice.speedup_at_min < 1.0 <= choice.speedup:
        parts.append(
            f"at batch {choice.batch_min} it is slower than plain decoding ({choice.speedup_at_min:.2f}x)"
            + ("" if one_for_all else ": list more batch sizes")
        )
    return parts


def _shared(settled: Settled, one_for_all: bool) -> list[str]:
    """That an end of the range would do better alone, if by more than was allowed."""
    question, loss = settled.question, settled.choice.sharing_loss
    if len(question.ends) == 1 or loss <= question.sharing.max_loss:
        return []
    if one_for_all:
        return [f"one setting serves all: an end of the range loses {loss:.1%} to its own best one"]
    contexts = " or contexts" if question.context_min < question.context else ""
    return [f"an end of this range loses {loss:.1%} against its own best: list more batch sizes{contexts}"]


def _chain(settled: Settled, ranks: RanksSource) -> list[str]:
    """How the best chain compares, where a tree was possible at all."""
    choice, question = settled.choice, settled.question
    if isinstance(question.family, Chains):
        return []
    if not ranks.knows_widths:
        return ["whether a tree would gain more is not known: no widths in the ranks"]
    if choice.dynamic is None and choice.tree.is_chain:
        return ["the best tree is a chain"] if question.objective is Objective.THROUGHPUT else []
    chain_loss = 1.0 - choice.chain.tokens_per_s / choice.best.tokens_per_s
    return [f"a chain of {choice.chain.depth} loses only {chain_loss:.1%}"] if 0.0 <= chain_loss < 0.03 else []


def _passed_over(settled: Settled) -> list[str]:
    """The larger tree that the tie rules passed over, if there is one."""
    choice = settled.choice
    if choice.runner_up is None or choice.runner_up.loss >= 0.0:
        return []
    gain, nodes = -choice.runner_up.loss, choice.runner_up.option.nodes
    other = "plain decoding" if nodes == 1 else f"{nodes} nodes"
    low, high = settled.question.ends[0], settled.question.ends[-1]
    if gain > TIE and low != high:
        by_batch = low.batch != high.batch
        here, there = (f"batch {p.batch}" if by_batch else f"context {p.context}" for p in (high, low))
        return [f"{other} would gain {gain:.1%} at {here}, and lose at {there}"]
    return [f"{other} would gain {gain:.1%}, " + ("a tie" if gain <= TIE else "which this evidence cannot tell")]


def _why_not(choice: Choice, ranks: RanksSource) -> str:
    other = choice.runner_up.option if choice.runner_up else choice.chain
    if other.nodes == 1:
        return "the limits leave no tree to verify"
    best = f"the best tree ({other.nodes} nodes)" if ranks.knows_widths else f"the best chain (K = {other.depth})"
    needed = other.step_time_s / choice.plain.step_time_s
    if other.expected_tokens > needed:
        gain = other.tokens_per_s / choice.plain.tokens_per_s - 1.0
        return f"do not speculate: {best} gains only {gain:.2%}, less than the tie margin"
    return (
        f"do not speculate: {best} must yield {needed:.2f} tokens per step to pay "
        f"and yields {other.expected_tokens:.2f}"
    )
