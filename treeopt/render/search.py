"""Plans and their buckets: the answer, its alternatives and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from treeopt.draft_words import NODES, DraftWords
from treeopt.plan.plan import Plan
from treeopt.plan.sources import FormatLoss
from treeopt.planner.names import DEFAULT_HARDWARE, DEFAULT_MODEL
from treeopt.planner.wording import words_in
from treeopt.render.because import because
from treeopt.render.bucket_table import alternatives, batches_table, bucket_table, ends_line
from treeopt.render.drawing import draw
from treeopt.render.legend import legend
from treeopt.render.text import estimate, room, speedup
from treeopt.solve.bucket import Bucket
from treeopt.solve.weights import BatchWeight

# A drawing with more nodes than this helps nobody; `treeopt show` draws all.
DRAWN_NODES: Final = 24


def report(plan: Plan, width: int) -> RenderableType:
    """What the plan was made from; then its one answer in full, or a line per bucket."""
    how = words_in(plan)
    if len(plan.buckets) == 1:
        return Group(plan_heading(plan), one_bucket(plan.buckets[0], how, plan.weights))
    below = legend(how, speedups=[bucket.speedup for bucket in plan.buckets])
    return Group(plan_heading(plan), bucket_table(plan, width), *ends_line(plan), below, *_over_weights(plan))


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


def one_bucket(bucket: Bucket, how: DraftWords, weights: Sequence[BatchWeight] = ()) -> RenderableType:
    """The answer for one bucket: verdict, tree, alternatives, reason."""
    parts: list[RenderableType] = [Text(), _verdict(bucket, how), Text()]
    if bucket.speculate:
        parts += [
            Padding(draw(bucket.tree, bucket.path_probabilities, limit=DRAWN_NODES), (0, 2), expand=False),
            Text(),
        ]
    if len(bucket.by_batch) > 1:
        parts += [batches_table(bucket, weights), Text()]
    below = legend(how, speedups=[bucket.speedup])
    return Group(*parts, alternatives(bucket, how), below, Text(), because(bucket, how))


def _verdict(bucket: Bucket, how: DraftWords) -> Text:
    context = f", context {bucket.context.words}" if bucket.context.min < bucket.context.max else ""
    text = Text(f"Batch {bucket.batches}{context}: ", style="bold")
    if not bucket.speculate:
        return _if_unknown(text.append("do not speculate", style="bold yellow"), bucket)
    text.append(f"verify {_drafted(bucket, how)}", style="bold green")
    text.append(f": {estimate(bucket.acceptance_length)} tokens per step, ")
    if bucket.speedup is None:
        return text.append("whether it pays is not known", style="bold yellow")
    return _if_unknown(text.append(f"{speedup(bucket.speedup)} plain decoding"), bucket)


def _if_unknown(text: Text, bucket: Bucket) -> Text:
    """What decides, where the price's error covers both answers."""
    if bucket.pays_if is None:
        return text
    draft = "it" if bucket.speculate else f"a chain of {bucket.best_chain.num_speculative_tokens}"
    return text.append(
        f"\nnot known whether that is right: {draft} pays {room(bucket.pays_if.extra_ms_below)}", style="yellow"
    )


def _drafted(bucket: Bucket, how: DraftWords) -> str:
    """The draft; of a drawn one that is static and has no engine's number, that it is the one below."""
    if bucket.dynamic is not None:
        return f"{how.draft(bucket.draft)} (drawn: on average confidence)"
    if how.head != NODES.head:
        return f"a chain, {how.draft(bucket.draft)}"
    return f"{'a chain' if bucket.tree.is_chain else 'this tree'} of {how.shape(len(bucket.tree), bucket.tree.depth)}"
