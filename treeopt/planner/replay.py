"""A plan's trees replayed on a trace, beside what the plan predicted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treeopt.acceptance.dynamic import dynamic_gain
from treeopt.acceptance.dynamic_trace import TraceValues
from treeopt.acceptance.dynamic_tree import DynamicTreeCaps
from treeopt.acceptance.intervals import tokens_interval
from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.replay import Replay, replay
from treeopt.acceptance.trace import Trace
from treeopt.draft_family import Draft, DynamicTree
from treeopt.errors import InputError
from treeopt.files.documents import read_document
from treeopt.plan.reading import is_plan, parse_plan, parse_tree
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One tree on the trace: tokens per step with its 95 % interval (None with too few documents).

    `predicted` is what the plan said, None for a bare tree; `difference` is (predicted - replayed) / replayed.
    `dynamic_gain` is the share that a tree of as many nodes, chosen anew in every step by the drafter's confidence
    (EAGLE-2's rule), is estimated to gain, `dynamic_upper` the most that it can (see `treeopt.acceptance.dynamic`).
    """

    batch_min: int | None
    batch_max: int | None
    context_min: int | None
    context_max: int | None
    nodes: int
    tokens_per_step: float
    low: float | None
    high: float | None
    all_positions: float
    steps: float
    documents: int
    predicted: float | None
    dynamic_gain: float | None = None
    dynamic_upper: float | None = None

    @property
    def difference(self) -> float | None:
        """How far the prediction was off, as a share of the replay."""
        return None if self.predicted is None else self.predicted / self.tokens_per_step - 1.0


@dataclass(frozen=True, kw_only=True)
class _Case:
    draft: Draft
    tree: DraftTree
    batch_min: int | None = None
    batch_max: int | None = None
    context_min: int | None = None
    context_max: int | None = None
    predicted: float | None = None


def replay_file(
    plan_or_tree: Path,
    trace: Path,
    *,
    batch: int | None = None,
    context: int | None = None,
    seed: int = 0,
    dynamic: bool = False,
) -> list[Replayed]:
    """Replay every tree of a plan (or those of one batch size or context), or a bare tree.

    With `dynamic` that rule is judged beside each tree. A plan's own dynamic trees are replayed by the trace's recorded
    confidence; without it, as the tree that they are on average confidence.

    Raises:
        InputError: a file cannot be read, the trace is too shallow for a tree, or no document is long enough.
    """
    cases = _cases(plan_or_tree, batch, context)
    triples = any(isinstance(case.draft, DynamicTree) for case in cases)
    loaded = read_trace(trace, confidence=dynamic or triples)
    rows = []
    for case in cases:
        result = _replayed(loaded, case)
        interval = tokens_interval(result, seed=seed)
        gain = dynamic_gain(loaded, case.tree) if dynamic else None
        rows.append(
            Replayed(
                batch_min=case.batch_min,
                batch_max=case.batch_max,
                context_min=case.context_min,
                context_max=case.context_max,
                nodes=len(case.tree),
                tokens_per_step=result.tokens_per_step,
                low=None if interval is None else interval.low,
                high=None if interval is None else interval.high,
                all_positions=result.all_position_tokens,
                steps=result.steps_per_phase,
                documents=loaded.documents,
                predicted=case.predicted,
                dynamic_gain=None if gain is None else gain.gain,
                dynamic_upper=None if gain is None else gain.gain_upper,
            )
        )
    return rows


def _replayed(trace: Trace, case: _Case) -> Replay:
    if isinstance(case.draft, DynamicTree) and trace.topk_prob is not None:
        steps, topk, nodes = case.draft
        values = TraceValues(trace=trace, limits=DynamicTreeCaps(num_steps=steps, topk=topk, num_draft_tokens=nodes))
        if values.limits.num_steps == steps and values.limits.topk == topk:
            return values.replay(case.draft)
    return replay(trace, case.tree)


def _cases(path: Path, batch: int | None, context: int | None) -> list[_Case]:
    document = read_document(path, what="plan or tree")
    if not is_plan(document):
        if batch is not None or context is not None:
            raise InputError("a bare tree has no batch sizes", hint="drop --batch and --context, or give a plan")
        tree = parse_tree(document)
        return [_Case(draft=tree, tree=tree)]
    plan = parse_plan(document)
    plan = plan if context is None else plan.at_context(context)
    buckets = plan.buckets if batch is None else [plan.bucket_for(batch, context.max) for context in plan.contexts]
    return [
        _Case(
            draft=b.draft,
            tree=b.tree,
            batch_min=b.batch_min,
            batch_max=b.batch_max,
            context_min=b.context_min,
            context_max=b.context_max,
            predicted=b.expected_tokens.value,
        )
        for b in buckets
    ]
