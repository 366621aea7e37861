"""A plan's answer in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from treeopt.draft_family import DynamicTree, chain_length
from treeopt.draft_words import NODES, DraftWords
from treeopt.plan.plan import Plan
from treeopt.planner.wording import words_in
from treeopt.solve.bucket import Bucket, Verdict
from treeopt.solve.buckets import batches_in_words


def headline(plan: Plan) -> str:
    """What to draft at which batch sizes, and what that gives; `plan` is for one range of contexts.

    "Batch 1-32: draft trees of 45 to 5 nodes, 1.61x to 1.32x plain decoding; batch 33-256: do not speculate." For an
    engine that loads chains: "draft K = 4 to 2".
    """
    runs = [list(run) for _, run in groupby(plan.buckets, key=lambda b: (b.speculate, b.verdict is Verdict.NOT_KNOWN))]
    words = words_in(plan)
    said = "; ".join(_run(run, words) for run in runs)
    return f"{said[0].upper()}{said[1:]}."


def _run(buckets: Sequence[Bucket], words: DraftWords) -> str:
    where = batches_in_words(buckets[0].batch.min, buckets[-1].batch.max)
    unsure = buckets[0].verdict is Verdict.NOT_KNOWN
    if not buckets[0].speculate:
        return f"{where}: do not speculate" + (", though the price's error leaves that open" if unsure else "")
    doubt = ", which the price's error leaves open" if unsure and buckets[0].speedup is not None else ""
    return f"{where}: draft {_drafts(buckets, words)}, {_gain(buckets)}{doubt}"


def _drafts(buckets: Sequence[Bucket], words: DraftWords) -> str:
    first, last = buckets[0].draft, buckets[-1].draft
    if first == last:
        return words.draft(first)
    if isinstance(first, DynamicTree) or isinstance(last, DynamicTree):
        return f"{words.draft(first)} to {words.draft(last)}"
    if words.head != NODES.head:
        return f"{words.size(len(first))} to {words.count(len(last))}"
    small, large = chain_length(last), chain_length(first)
    if (small is None) is (large is None):
        return (
            f"trees of {buckets[0].nodes} to {buckets[-1].nodes} nodes"
            if small is None
            else f"chains of {large} to {small}"
        )
    shapes = (
        f"trees of {b.nodes} nodes" if k is None else f"chains of {k}"
        for b, k in ((buckets[0], large), (buckets[-1], small))
    )
    return " to ".join(shapes)


def _gain(buckets: Sequence[Bucket]) -> str:
    """The speedups from the smallest batch size that they are known at to the largest."""
    last = buckets[-1].speedup
    if last is None:
        return "whether that pays is not known"
    listed = [at.speedup for b in buckets for at in b.by_batch if at.speedup is not None]
    first = (listed or [b.speedup.value for b in buckets if b.speedup is not None])[0]
    if f"{first:.2f}" != f"{last.value:.2f}":
        return f"{first:.2f}x to {last.value:.2f}x plain decoding"
    held = f" [{last.low:.2f}, {last.high:.2f}]" if last.low is not None and last.high is not None else ""
    return f"{last.value:.2f}x{held} plain decoding"
