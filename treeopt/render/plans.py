"""Plans and their buckets: the answer, its alternatives and the reason."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from treeopt.plan.bucket import Alternative, Bucket, EngineLoss
from treeopt.plan.plan import Plan
from treeopt.render.text import contexts, estimate, loss, ms, percent, plain_table, rate, speedup, words
from treeopt.render.trees import draw

# From this many columns on a terminal gets every number of a plan.
WIDE: Final = 130
# A drawing with more nodes than this helps nobody; `treeopt show` draws all.
DRAWN_NODES: Final = 24


def plan_heading(plan: Plan) -> Text:
    """What the plan was made from, in two lines."""
    model, hardware, ranks = dict(plan.model.facts), dict(plan.hardware.facts), dict(plan.ranks.facts)
    tp = f" tp {model['tp']}" if model.get("tp", 1) != 1 else ""
    text = Text()
    text.append(plan.model.name, style="bold").append(f" {model.get('dtype', '')}{tp} on ")
    text.append(plan.hardware.name, style="bold")
    text.append(f" ({hardware.get('source', 'unknown')}), drafter {plan.drafter}, {_contexts(plan)}\n")
    text.append("ranks ").append(plan.ranks.name, style="bold").append(f" ({ranks.get('evidence', 'unknown')}")
    if ranks.get("positions"):
        text.append(f", {ranks['positions']:,.0f} positions")
    if ranks.get("documents"):
        text.append(f", {ranks['documents']} documents")
    text.append(")")
    if plan.cost is not None:
        text.append(", step times ").append(plan.cost.name, style="bold")
    if plan.engine is not None:
        text.append("\nfor ").append(f"{plan.engine.name} {plan.engine.version}".strip(), style="bold")
        text.append(f" ({plan.engine.format})")
        for other in plan.engine.formats[1:]:
            text.append(f"; {other.format} would lose up to {other.worst_loss:.1%}, {other.mean_loss:.1%} on average")
    return text


def _contexts(plan: Plan) -> str:
    listed = [str(held.max) for held in plan.contexts]
    return f"context {listed[0]}" if len(listed) == 1 else f"contexts {', '.join(listed)}"


def one_bucket(bucket: Bucket) -> RenderableType:
    """The answer for one bucket: verdict, tree, alternatives, reason."""
    parts: list[RenderableType] = [Text(), _verdict(bucket), Text()]
    if bucket.speculate:
        parts += [
            Padding(draw(bucket.tree, bucket.path_probabilities, limit=DRAWN_NODES), (0, 2), expand=False),
            Text(),
        ]
    return Group(*parts, alternatives(bucket), Text(), _because(bucket))


def bucket_table(plan: Plan, width: int = WIDE) -> Table:
    """One line per bucket; a narrow terminal gets fewer columns rather than cut numbers."""
    rows = [_cells(bucket, plan, width) for bucket in plan.buckets]
    table = plain_table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    return table


def _cells(b: Bucket, plan: Plan, width: int) -> dict[str, str]:
    """One line by column."""
    wide, several, limited = width >= WIDE, len(plan.contexts) > 1, plan.latency.limits
    tight = not wide and (several or limited or b.engine_loss is not None)  # no place for intervals
    yes, chain, time = b.speculate, b.best_chain, b.time_per_token
    cells = {"context": contexts(b.context_min, b.context_max)} if several else {}
    cells |= {"batch": b.batches, "verify": _shape(b) if yes else "nothing"}
    cells |= {} if tight and limited else {"depth": str(b.tree.depth) if yes else ""}
    cells["E"] = "" if not yes else f"{b.expected_tokens.value:.2f}" if tight else estimate(b.expected_tokens)
    if b.held_out_tokens is not None:
        cells["held-out E"] = f"{b.held_out_tokens.value:.2f}" if tight else estimate(b.held_out_tokens)
    if wide:
        cells |= {"break-even E": f"{b.break_even_tokens:.2f}" if yes else "", "step ms": ms(b.step_time_s)}
    if limited and time is not None:
        cells |= {"ms/token": ms(time.mean_s), "p99": ms(time.p99_s), "limit": "met" if b.meets_limit else "exceeded"}
    cells["tokens/s"] = rate(b.tokens_per_s)
    if tight:
        cells["speedup"] = f"{b.speedup.value:.2f}x"
    else:
        cells["speedup"] = speedup(b.speedup) if yes else "do not speculate"
    if b.engine_loss is not None:
        cells["engine loses"] = loss(b.engine_loss.share.value)
    if wide and b.engine_loss is not None:
        best = b.engine_loss.unrestricted
        cells["without it"] = f"{rate(best.tokens_per_s)} (N={best.nodes})"
    elif wide:
        cells["best chain"] = f"{rate(chain.tokens_per_s)} (K={chain.depth})" if chain.depth else ""
        cells["plain"] = rate(b.plain_tokens_per_s)
    return cells


def alternatives(bucket: Bucket) -> Table:
    """The choice beside the runner-up, the best chain and plain decoding, at the bucket's largest batch."""
    table = plain_table(f"at batch {bucket.batch_max}", "nodes", "depth", "E", "step ms", "tokens/s", "against it")
    chosen = "choice" if bucket.speculate else "choice: plain"
    table.add_row(
        Text(chosen, style="bold green"),
        str(len(bucket.tree)),
        str(bucket.tree.depth),
        estimate(bucket.expected_tokens) if bucket.speculate else "1.00",
        ms(bucket.step_time_s),
        rate(bucket.tokens_per_s),
        "",
    )
    others: list[tuple[str, Alternative | None]] = [("runner-up", bucket.runner_up), ("best chain", bucket.best_chain)]
    if bucket.engine_loss is not None:
        # A dynamic tree may yield more than any static one.
        free = "unrestricted" if bucket.dynamic is None else "any static tree"
        others = [(free, bucket.engine_loss.unrestricted), *others]
    for name, option in others:
        if option is not None and option.nodes > 1:
            step_s = bucket.batch_max * option.expected_tokens / option.tokens_per_s
            row = (str(option.nodes), str(option.depth), f"{option.expected_tokens:.2f}", ms(step_s))
            table.add_row(name, *row, rate(option.tokens_per_s), percent(-option.loss))
    if bucket.speculate:
        plain = bucket.plain_tokens_per_s
        change = percent(plain / bucket.tokens_per_s - 1.0)
        table.add_row("plain decoding", "1", "0", "1.00", ms(bucket.batch_max / plain), rate(plain), change)
    return table


def _verdict(bucket: Bucket) -> Text:
    context = f", context {bucket.context_min}-{bucket.context_max}" if bucket.context_min < bucket.context_max else ""
    text = Text(f"Batch {bucket.batches}{context}: ", style="bold")
    if not bucket.speculate:
        return text.append("do not speculate", style="bold yellow")
    text.append(f"verify {_words(bucket)}", style="bold green")
    text.append(f": {estimate(bucket.expected_tokens)} tokens per step, {speedup(bucket.speedup)} plain decoding")
    return text


def _shape(bucket: Bucket) -> str:
    """The draft in a table's cell."""
    if bucket.dynamic is None:
        return f"{len(bucket.tree)} nodes"
    return f"{bucket.dynamic.num_draft_tokens} of ({bucket.dynamic.num_steps}, {bucket.dynamic.topk})"


def _words(bucket: Bucket) -> str:
    if bucket.dynamic is not None:
        steps, topk, nodes = bucket.dynamic
        return f"a dynamic tree of {nodes} nodes (steps {steps}, topk {topk}; drawn: on average confidence)"
    shape = "a chain" if bucket.tree.is_chain else "this tree"
    return f"{shape} of {len(bucket.tree)} nodes, depth {bucket.tree.depth}"


def _engine_costs(bucket: Bucket, costs: EngineLoss) -> str:
    """What the engine's limits cost, in words."""
    share, best, shared = costs.share, costs.unrestricted, bucket.batch_min < bucket.batch_max
    kind = "" if bucket.dynamic is None else "a static tree of "
    span = "" if share.low is None or share.high is None else f" [{loss(share.low)}, {loss(share.high)}]"
    free = f"{kind}{best.nodes} nodes, depth {best.depth}" if best.nodes > 1 else "plain decoding"
    words = f"The engine's limits cost {loss(share.value)}{span} here, against {free}."
    if abs(share.value) <= 0.0005:
        words = "The engine's limits cost nothing here."
    if share.value < -0.0005:
        words = f"Without the engine's limits {free} would serve this batch and others: {loss(-share.value)} less here."
    if shared and costs.worst_share > share.value + 0.0005:
        words += f" They cost most at batch {costs.worst_batch}: {loss(costs.worst_share)}."
    return words


def _because(bucket: Bucket) -> Text:
    text = Text(bucket.reason[0].upper() + bucket.reason[1:] + ".")
    if bucket.engine_loss is not None:
        text.append("\n" + _engine_costs(bucket, bucket.engine_loss))
    if bucket.time_per_token is not None:
        time = bucket.time_per_token
        text.append(f"\nA request waits {ms(time.mean_s)} ms per token on average, {ms(time.p99_s)} ms at the 99th ")
        text.append({None: "percentile.", True: "percentile: within.", False: "percentile: over."}[bucket.meets_limit])
        if time.documents_p99_s is not None and time.documents_p99_s > time.p99_s:
            text.append(
                f" Documents differ more than steps do: 99 % of these stay within {ms(time.documents_p99_s)} ms."
            )
    sensitivity = bucket.cost_sensitivity
    if sensitivity is not None:
        largest = max(sensitivity.terms, key=lambda term: term.step_s)
        share = largest.step_s / sum(term.step_s for term in sensitivity.terms)
        text.append(f"\nMost of the step: {words(largest.name)} ({share:.0%}).")
        if sensitivity.growing_term is not None:
            text.append(f" Grows most over plain decoding: {words(sensitivity.growing_term)}.")
    if bucket.resolvable is not None:
        text.append(
            f"\nThese documents show differences of {bucket.resolvable:.1%} in tokens/s and more; four times as "
        )
        text.append("many would halve that, and the intervals.")
    if bucket.held_out_tokens is not None:
        off = bucket.expected_tokens.value / bucket.held_out_tokens.value - 1.0
        text.append(
            f"\nOn held-out documents: {estimate(bucket.held_out_tokens)} tokens per step ({off:+.1%} predicted)."
        )
    for c in bucket.categories:
        text.append(
            f"\n{c.name} ({c.weight:.0%} of drafts): {c.expected_tokens:.2f} tokens per step; its own best tree "
        )
        text.append(f"would be {c.loss:.1%} faster" if c.loss >= 0.001 else "is no faster")
    shared = bucket.batch_min < bucket.batch_max or bucket.context_min < bucket.context_max
    if bucket.sharing_loss > 0.0005 and shared:
        own = "its own best" if bucket.engine_loss is None else "the best that the engine loads there"
        text.append(f"\nNeither end of this range loses more than {bucket.sharing_loss:.1%} of {own}.")
    return text.append(f"\nOptimality: {bucket.optimality}.", style="dim")
