"""Plans and their buckets: the answer, its alternatives and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from treeopt.draft_words import DRAFT_TOKENS, NODES, DraftWords, K, words_of
from treeopt.glossary import short
from treeopt.plan.plan import Plan
from treeopt.plan.sources import EngineSource, FormatLoss
from treeopt.planner.names import DEFAULT_HARDWARE, DEFAULT_MODEL
from treeopt.render.drawing import draw
from treeopt.render.text import estimate, loss, ms, percent, plain_table, rate, speedup, words
from treeopt.solve.bucket import Bucket, EngineLoss, Option
from treeopt.solve.weights import BatchWeight

# From this many columns on a terminal gets every number of a plan.
WIDE: Final = 130
# A drawing with more nodes than this helps nobody; `treeopt show` draws all.
DRAWN_NODES: Final = 24


def report(plan: Plan, width: int) -> RenderableType:
    """What the plan was made from; then its one answer in full, or a line per bucket."""
    if len(plan.buckets) == 1:
        return Group(plan_heading(plan), one_bucket(plan.buckets[0], plan.weights, plan.sources.engine))
    return Group(
        plan_heading(plan), bucket_table(plan, width), legend(plan.buckets, plan.sources.engine), *_over_weights(plan)
    )


def counted(buckets: Sequence[Bucket], engine: EngineSource | None) -> DraftWords:
    """How these drafts are counted: as the engine that will load them does."""
    return NODES if engine is None else words_of([b.draft for b in buckets if b.speculate])


def legend(buckets: Sequence[Bucket], engine: EngineSource | None) -> Text:
    """A line for each symbol of a table."""
    how, setting = counted(buckets, engine), ""
    if engine is not None and how is not NODES:
        from treeopt.engines.registry import find_engine  # imports all engines

        found = find_engine(engine.wanted).engine
        named = found.length_setting if how is K else found.tree_settings
        setting = f"{named} in {found.title}" if named else ""
    return Text("\n".join((short(how.head, setting), short("E"))), style="dim")


def _over_weights(plan: Plan) -> list[Text]:
    """What several drafts give over the weights of batch sizes, at the longest context."""
    mean = plan.expected
    if mean is None:
        return []
    over = "" if mean.speedup is None else f", {mean.speedup:.2f}x plain decoding"
    at = f" at context {plan.context}" if len(plan.contexts) > 1 else ""
    return [Text(f"over the weights of batch sizes{at}: {mean.tokens_per_s:,.0f} tokens/s{over}")]


def plan_heading(plan: Plan) -> Text:
    """What the plan was made from, in two lines."""
    of = plan.sources
    tp = f" tp {of.model.tp}" if of.model.tp != 1 else ""
    text = Text()
    table = of.cost is not None  # beside it a model or GPU that nobody named has no place
    if not table or of.model.name != DEFAULT_MODEL:
        text.append(of.model.name, style="bold").append(f" {of.model.dtype}{tp}")
    if not table or of.hardware.name != DEFAULT_HARDWARE:
        text.append(" on " if text else "on ").append(of.hardware.name, style="bold")
        text.append(f" ({of.hardware.source}), drafter {of.drafter.reference}")
    text.append(", " if text else "").append(f"{_contexts(plan)}\n")
    text.append("ranks ").append(of.ranks.name, style="bold").append(f" ({of.ranks.evidence}")
    if of.ranks.positions:
        text.append(f", {of.ranks.positions:,.0f} positions")
    if of.ranks.documents:
        text.append(f", {of.ranks.documents} documents")
    text.append(")")
    if of.cost is not None:
        text.append(", step times ").append(of.cost.name, style="bold")
    if of.engine is not None:
        text.append("\nfor ").append(f"{of.engine.name} {of.engine.version}".strip(), style="bold")
        text.append(f" ({of.engine.format})")
        for other in of.engine.formats[1:]:
            text.append(_other_format(other))
    return text


def _other_format(other: FormatLoss) -> str:
    if other.worst_loss is None or other.mean_loss is None:
        return f"; what {other.format} would lose is not known"
    return f"; {other.format} would lose up to {other.worst_loss:.1%}, {other.mean_loss:.1%} on average"


def _contexts(plan: Plan) -> str:
    listed = [str(held.max) for held in plan.contexts]
    return f"context {listed[0]}" if len(listed) == 1 else f"contexts {', '.join(listed)}"


def one_bucket(
    bucket: Bucket, weights: Sequence[BatchWeight] = (), engine: EngineSource | None = None
) -> RenderableType:
    """The answer for one bucket: verdict, tree, alternatives, reason."""
    how = counted([bucket], engine)
    parts: list[RenderableType] = [Text(), _verdict(bucket, how), Text()]
    if bucket.speculate:
        parts += [
            Padding(draw(bucket.tree, bucket.path_probabilities, limit=DRAWN_NODES), (0, 2), expand=False),
            Text(),
        ]
    if len(bucket.by_batch) > 1:
        parts += [batches_table(bucket, weights), Text()]
    return Group(*parts, alternatives(bucket, how), legend([bucket], engine), Text(), _because(bucket, how))


def batches_table(bucket: Bucket, weights: Sequence[BatchWeight] = ()) -> Table:
    """One draft at every listed batch size that it serves, and what the best draft for that one alone would gain."""
    share = {weight.batch: f"{weight.share:.1%}" for weight in weights}
    table = plain_table("batch", *(["of the time"] if weights else []), "tokens/s", "speedup", "loses to its own best")
    for at in bucket.by_batch:
        gain = "-" if at.speedup is None else f"{at.speedup:.2f}x"
        of_time = [share.get(at.batch, "")] if weights else []
        table.add_row(str(at.batch), *of_time, f"{at.tokens_per_s:,.0f}", gain, loss(at.loss))
    return table


def bucket_table(plan: Plan, width: int = WIDE) -> Table:
    """One line per bucket; a narrow terminal gets fewer columns rather than cut numbers."""
    rows = [bucket_cells(bucket, plan, width) for bucket in plan.buckets]
    table = plain_table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    if any(_ends(bucket, plan) for bucket in plan.buckets):
        table.caption_justify = "left"
        table.caption = (
            f"* ends where the evidence ends, at depth {plan.sources.ranks.depth}: a deeper draft may gain "
            "more; record deeper guesses to tell"
        )
    return table


def _ends(bucket: Bucket, plan: Plan) -> bool:
    """Whether the evidence, and not the price, may have stopped the draft."""
    return bucket.speculate and bucket.depth == plan.sources.ranks.depth and plan.limits.max_depth != bucket.depth


def bucket_cells(b: Bucket, plan: Plan, width: int) -> dict[str, str]:
    """One line by column."""
    wide, several, limited = width >= WIDE, len(plan.contexts) > 1, plan.time_limit.limits
    tight = not wide and (several or limited or b.engine_loss is not None)  # no place for intervals
    yes, chain, time = b.speculate, b.best_chain, b.time_per_token
    cells = {"context": b.context.words} if several else {}
    how = counted(plan.buckets, plan.sources.engine)
    cells |= {"batch": b.batches, _head(how): (_shape(b, how) + "*" * _ends(b, plan)) if yes else "nothing"}
    if how is NODES and not (tight and limited):
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
        cells["without it"] = "" if best is None else f"{rate(best.tokens_per_s)} ({how.size(best.nodes)})"
    elif wide:
        cells["best chain"] = f"{rate(chain.tokens_per_s)} (K={chain.num_speculative_tokens})" if chain.depth else ""
        cells["plain"] = "not known" if b.plain is None else rate(b.plain.tokens_per_s)
    return cells


def alternatives(bucket: Bucket, how: DraftWords = NODES) -> Table:
    """The choice beside the runner-up, the best chain and plain decoding, at the bucket's largest batch."""
    table = plain_table(f"at batch {bucket.batch.max}", how.head, "depth", "E", "step ms", "tokens/s", "against it")
    chosen = "choice" if bucket.speculate else "choice: plain"
    E = estimate(bucket.acceptance_length) if bucket.speculate else "1.00"
    table.add_row(Text(chosen, style="bold green"), *_sizes(bucket.choice, E, how), "")
    told = {_sizes(bucket.choice, "", how)}
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
            and _sizes(option, "", how) not in told
            and (option.nodes > 1 or name == "plain decoding")
        ):
            E = f"{option.acceptance_length.value:.2f}"
            table.add_row(name, *_sizes(option, E, how), percent(-bucket.loss_of(option)))
            told.add(_sizes(option, "", how))
    return table


def _sizes(option: Option, E: str, how: DraftWords) -> tuple[str, ...]:
    return (str(how.count(option.nodes)), str(option.depth), E, ms(option.step_time_s), rate(option.tokens_per_s))


def _verdict(bucket: Bucket, how: DraftWords) -> Text:
    context = f", context {bucket.context.words}" if bucket.context.min < bucket.context.max else ""
    text = Text(f"Batch {bucket.batches}{context}: ", style="bold")
    if not bucket.speculate:
        return _if_unknown(text.append("do not speculate", style="bold yellow"), bucket)
    text.append(f"verify {_words(bucket, how)}", style="bold green")
    text.append(f": {estimate(bucket.acceptance_length)} tokens per step, ")
    if bucket.speedup is None:
        return text.append("whether it pays is not known", style="bold yellow")
    return _if_unknown(text.append(f"{speedup(bucket.speedup)} plain decoding"), bucket)


def _if_unknown(text: Text, bucket: Bucket) -> Text:
    """What decides, where the price's error covers both answers."""
    if bucket.pays_if is None:
        return text
    draft = "it" if bucket.speculate else f"a chain of {bucket.best_chain.num_speculative_tokens}"
    room = f"if the engine adds less than {bucket.pays_if.extra_ms_below:.1f} ms per speculative step"
    return text.append(f"\nnot known whether that is right: {draft} pays {room}", style="yellow")


def _head(how: DraftWords) -> str:
    """The column of the drafts: what the engine is set to."""
    return {NODES.head: "verify", DRAFT_TOKENS.head: "steps, topk, draft tokens"}.get(how.head, how.head)


def _shape(bucket: Bucket, how: DraftWords) -> str:
    """The draft in a table's cell."""
    if bucket.dynamic is not None:
        return ", ".join(map(str, bucket.dynamic))
    return f"{len(bucket.tree)} nodes" if how is NODES else str(how.count(len(bucket.tree)))


def _words(bucket: Bucket, how: DraftWords) -> str:
    if bucket.dynamic is not None:
        steps, topk, nodes = bucket.dynamic
        return f"a dynamic tree: steps {steps}, topk {topk}, draft tokens {nodes} (drawn: on average confidence)"
    if how is K:
        return f"a chain, {how.size(len(bucket.tree))}"
    shape = "a chain" if bucket.tree.is_chain else "this tree"
    return f"{shape} of {len(bucket.tree)} nodes, depth {bucket.tree.depth}"


def _engine_costs(bucket: Bucket, costs: EngineLoss, how: DraftWords) -> str:
    """What the engine's limits cost, in words."""
    share, best, worst = costs.share, costs.unrestricted, costs.worst
    if share is None:
        return "What the engine's limits cost is not known: no widths in the ranks."
    kind = "" if bucket.dynamic is None else "a static tree of "
    span = "" if share.low is None or share.high is None else f" [{loss(share.low)}, {loss(share.high)}]"
    free = "the best draft without them"
    if best is not None:
        free = f"{kind}{how.size(best.nodes)}, depth {best.depth}" if best.nodes > 1 else "plain decoding"
    words = f"The engine's limits cost {loss(share.value)}{span} here, against {free}."
    if abs(share.value) <= 0.0005:
        words = "The engine's limits cost nothing here."
    if share.value < -0.0005:
        words = f"Without the engine's limits {free} would serve this batch and others: {loss(-share.value)} less here."
    if bucket.batch.min < bucket.batch.max and worst is not None and worst.share > share.value + 0.0005:
        words += f" They cost most at batch {worst.batch}: {loss(worst.share)}."
    return words


def _because(bucket: Bucket, how: DraftWords) -> Text:
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
