"""A plan's trees replayed on a trace, beside what the plan predicted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from treeopt.acceptance.dynamic_trace import TraceValues, dynamic_gain
from treeopt.acceptance.dynamic_tree import DynamicTreeCaps
from treeopt.acceptance.intervals import tokens_interval
from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.replay import Replay, replay
from treeopt.acceptance.trace import Trace
from treeopt.answer import Estimate, Span
from treeopt.draft_family import Draft, DynamicTree
from treeopt.draft_words import NODES, DraftWords
from treeopt.errors import InputError
from treeopt.files.documents import read_document
from treeopt.files.typed import Count, NotNegative, Whole
from treeopt.plan.reading import is_plan, parse_plan, parse_tree
from treeopt.planner.wording import words_in
from treeopt.solve.report import estimate
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One draft on the trace: the acceptance length that a decoder got, with its 95 % interval.

    `batch` and `context` are those of a plan's bucket, None for a bare tree, as is `predicted`, what the plan said;
    `difference` is (predicted - replayed) / replayed. `all_positions` is the acceptance length of a draft at every
    position. `dynamic_gain` is the share that a tree of as many nodes, chosen anew in every step by the drafter's
    confidence (EAGLE-2's rule), is estimated to gain, `dynamic_upper` the most that it can (see
    `treeopt.acceptance.dynamic_trace`).
    """

    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("batch", "context", "nodes", "acceptance_length", "all_positions", "steps", "documents"),
        *("predicted", "difference", "dynamic_gain", "dynamic_upper"),
    )
    batch: Span | None
    context: Span | None
    nodes: Count
    acceptance_length: Estimate
    all_positions: NotNegative
    steps: NotNegative
    documents: Whole
    predicted: NotNegative | None
    dynamic_gain: float | None = None
    dynamic_upper: float | None = None

    @property
    def difference(self) -> float | None:
        """How far the prediction was off, as a share of the replay: 2.1 predicted and 2.0 replayed are 0.05."""
        return None if self.predicted is None else self.predicted / self.acceptance_length.value - 1.0


@dataclass(frozen=True, kw_only=True)
class Replays:
    """A plan's or a tree's replays on one trace, and how the plan's engine counts drafts."""

    FORMAT: ClassVar[str] = "treeopt.replay/2"
    WRITTEN: ClassVar[tuple[str, ...]] = ("trace", "replays")
    trace: str
    replays: tuple[Replayed, ...]
    words: DraftWords = NODES


@dataclass(frozen=True, kw_only=True)
class _Case:
    draft: Draft
    tree: DraftTree
    batch: Span | None = None
    context: Span | None = None
    predicted: float | None = None


def replay_file(
    plan_or_tree: Path,
    trace: Path,
    *,
    batch: int | None = None,
    context: int | None = None,
    seed: int = 0,
    dynamic: bool = False,
) -> Replays:
    """Replay every tree of a plan (or those of one batch size or context), or a bare tree.

    With `dynamic` that rule is judged beside each tree. A plan's own dynamic trees are replayed by the trace's recorded
    confidence; without it, as the tree that they are on average confidence.

    Raises:
        InputError: a file cannot be read, the trace is too shallow for a tree, or no document is long enough.
    """
    cases, words = _cases(plan_or_tree, batch, context)
    triples = any(isinstance(case.draft, DynamicTree) for case in cases)
    loaded = read_trace(trace, confidence=dynamic or triples)
    rows = []
    for case in cases:
        result = _replayed(loaded, case)
        interval = tokens_interval(result, seed=seed)
        gain = dynamic_gain(loaded, case.tree) if dynamic else None
        rows.append(
            Replayed(
                batch=case.batch,
                context=case.context,
                nodes=len(case.tree),
                acceptance_length=estimate(result.tokens_per_step, interval),
                all_positions=result.all_position_tokens,
                steps=result.steps_per_phase,
                documents=loaded.documents,
                predicted=case.predicted,
                dynamic_gain=None if gain is None else gain.gain,
                dynamic_upper=None if gain is None else gain.gain_upper,
            )
        )
    return Replays(trace=str(trace), replays=tuple(rows), words=words)


def _replayed(trace: Trace, case: _Case) -> Replay:
    if isinstance(case.draft, DynamicTree) and trace.topk_prob is not None:
        steps, topk, nodes = case.draft
        values = TraceValues.of(trace, DynamicTreeCaps(num_steps=steps, topk=topk, num_draft_tokens=nodes))
        if values.limits.num_steps == steps and values.limits.topk == topk:
            return values.replay(case.draft)
    return replay(trace, case.tree)


def _cases(path: Path, batch: int | None, context: int | None) -> tuple[list[_Case], DraftWords]:
    document = read_document(path, what="plan or tree")
    if not is_plan(document):
        if batch is not None or context is not None:
            raise InputError("a bare tree has no batch sizes", hint="drop --batch and --context, or give a plan")
        tree = parse_tree(document)
        return [_Case(draft=tree, tree=tree)], NODES
    plan = parse_plan(document)
    words = words_in(plan)
    plan = plan if context is None else plan.at_context(context)
    buckets = plan.buckets if batch is None else [plan.bucket_for(batch, context.max) for context in plan.contexts]
    return [
        _Case(draft=b.draft, tree=b.tree, batch=b.batch, context=b.context, predicted=b.acceptance_length.value)
        for b in buckets
    ], words
