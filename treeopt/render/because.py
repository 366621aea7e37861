"""Why a bucket's draft is the answer, in sentences."""

from __future__ import annotations

from rich.text import Text

from treeopt.draft_words import DraftWords
from treeopt.render.text import estimate, loss, ms, words
from treeopt.solve.bucket import Bucket
from treeopt.solve.options import EngineLoss


def because(bucket: Bucket, how: DraftWords) -> Text:
    """Why this draft, what it costs and what is known of it, a line each."""
    text = Text(bucket.reason[0].upper() + bucket.reason[1:] + ".")
    if bucket.engine_loss is not None:
        text.append("\n" + _engine_costs(bucket, bucket.engine_loss, how))
    if bucket.time_per_token is not None:
        time = bucket.time_per_token
        text.append(f"\nA request waits {ms(time.mean_s)} ms per token on average, {ms(time.p99_s)} ms at the 99th ")
        text.append({None: "percentile.", True: "percentile: within.", False: "percentile: over."}[bucket.meets_limit])
        if time.documents_p99_s is not None and time.documents_p99_s > time.p99_s:
            text.append(
                f" Documents differ more than steps do: 99 % of these stay within {ms(time.documents_p99_s)} ms."
            )
    sensitivity = bucket.sensitivity
    if sensitivity is not None:
        largest = max(sensitivity.terms, key=lambda term: term.step_s)
        share = largest.step_s / sum(term.step_s for term in sensitivity.terms)
        text.append(f"\nMost of the step: {words(largest.name)} ({share:.0%}).")
        if sensitivity.growing_term is not None:
            text.append(f" Grows most over plain decoding: {words(sensitivity.growing_term)}.")
    if bucket.smallest_visible_gain is not None:
        gain = bucket.smallest_visible_gain
        text.append(f"\nThese documents show differences of {gain:.1%} in tokens/s and more; four times as ")
        text.append("many would halve that, and the intervals.")
    if bucket.held_out_length is not None:
        off = bucket.acceptance_length.value / bucket.held_out_length.value - 1.0
        text.append(
            f"\nOn held-out documents: {estimate(bucket.held_out_length)} tokens per step ({off:+.1%} predicted)."
        )
    for c in bucket.categories:
        text.append(
            f"\n{c.name} ({c.weight:.0%} of drafts): {c.acceptance_length:.2f} tokens per step; its own best tree "
        )
        text.append(f"would be {c.loss:.1%} faster" if c.loss >= 0.001 else "is no faster")
    shared = bucket.batch.min < bucket.batch.max or bucket.context.min < bucket.context.max
    if bucket.sharing_loss > 0.0005 and shared:
        own = "its own best" if bucket.engine_loss is None else "the best that the engine loads there"
        text.append(f"\nNeither end of this range loses more than {bucket.sharing_loss:.1%} of {own}.")
    return text.append(f"\nOptimality: {_optimality(bucket)}.", style="dim")


def _optimality(bucket: Bucket) -> str:
    exact, gap, listed_only = bucket.optimality
    among = "" if bucket.engine_loss is None else " within the engine's limits"
    if exact and gap == 0.0:
        return f"exact{among}"
    if gap == 0.0:
        return (
            f"the best of all that were listed{among}, each at its own draft starts; a draft in no list may be better"
        )
    faster = "faster" if bucket.meets_limit is not False else "quicker per token"
    if listed_only:
        return (
            f"no other draft that was listed{among} is {faster} by more than {gap:.2%} than the best one found; "
            "a draft in no list may be better"
        )
    return f"no other draft{among} is {faster} by more than {gap:.2%} than the best one found: bounded, not exhaustive"


def _engine_costs(bucket: Bucket, costs: EngineLoss, how: DraftWords) -> str:
    """What the engine's limits cost, in words."""
    share, best, worst = costs.share, costs.unrestricted, costs.worst
    if share is None or best is None:
        return "What the engine's limits cost is not known: no widths in the ranks."
    kind = "" if bucket.dynamic is None else "a static tree of "
    span = "" if share.low is None or share.high is None else f" [{loss(share.low)}, {loss(share.high)}]"
    free = f"{kind}{how.shape(best.nodes, best.depth)}" if best.nodes > 1 else "plain decoding"
    words = f"The engine's limits cost {loss(share.value)}{span} here, against {free}."
    if abs(share.value) <= 0.0005:
        words = "The engine's limits cost nothing here."
    if share.value < -0.0005:
        words = f"Without the engine's limits {free} would serve this batch and others: {loss(-share.value)} less here."
    if bucket.batch.min < bucket.batch.max and worst is not None and worst.share > share.value + 0.0005:
        words += f" They cost most at batch {worst.batch}: {loss(worst.share)}."
    return words
