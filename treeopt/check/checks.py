"""What can be wrong with a running plan, one check each; every finding names the next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from treeopt.acceptance.model import PathModel
from treeopt.check.bound import cover_bound
from treeopt.check.change import Change, DriftVerdict
from treeopt.check.matching import PlannedBuckets, chain_survival, where
from treeopt.check.measured import Measured, Metrics
from treeopt.check.report import Compared, Finding, FindingKind
from treeopt.check.windows import MIN_WINDOWS, LogWindow, pooled
from treeopt.draft_words import K
from treeopt.engines.format import DRAFT_TOKENS
from treeopt.tree import DraftTree


def not_active(metrics: Metrics, candidates: PlannedBuckets) -> Iterator[Finding]:
    """Nothing was drafted, or something else than any tree of the plan."""
    if metrics.drafted_nothing and candidates.speculating:
        yield Finding(
            kind=FindingKind.NOT_ACTIVE,
            where=_all(candidates),
            seen=f"no {DRAFT_TOKENS}, the plan drafts {candidates.planned}",
            next_step="start the engine with the plan's configuration; treeopt export says how to see that it is used",
        )
    for source in metrics.sources:
        own = candidates.at(source.batch)
        if source.per_draft is None or own.that_draft(source) or candidates.mixes(source):
            continue
        should = bool(own.speculating)
        yield Finding(
            kind=FindingKind.NOT_ACTIVE,
            where=_all(own),
            seen=f"{source.per_draft} {DRAFT_TOKENS}, the plan drafts {own.planned if should else 'none here'}",
            next_step="load the exported configuration; N counts the root in SGLang, not in vLLM or TensorRT-LLM; "
            "a chain that runs in place of the plan is judged with --deployed chain:K"
            if should
            else "switch speculation off at these batch sizes, or search again if it should pay",
        )


def moved(compared: Sequence[Compared]) -> Iterator[Finding]:
    """Acceptance above or below the plan's by more than the gate; or the top guesses alone where a tree should run."""
    for c in compared:
        if c.verdict is not DriftVerdict.DRIFT:
            continue
        if _is_chain_instead(c):
            yield Finding(
                kind=FindingKind.NOT_ACTIVE,
                where=where(c.bucket),
                seen=f"{c.change.measured:.2f} tokens per step, as {c.bucket.tree.depth} top guesses alone would give",
                next_step="the engine runs a chain, not the tree: see what it loads with treeopt export",
            )
            continue
        fell = c.change.share < 0.0
        most = c.most_changed
        at = "" if most is None else f", most at depth {most.depth}: {most.planned:.3f} to {most.measured:.3f}"
        yield Finding(
            kind=FindingKind.ACCEPTANCE_FELL if fell else FindingKind.ACCEPTANCE_ROSE,
            where=where(c.bucket),
            seen=f"{c.change.measured:.2f} tokens per step, planned {c.change.planned:.2f}{at}",
            next_step="collect ranks on today's traffic and search again: the best tree may be "
            + ("smaller" if fell else "larger"),
        )


def above_bound(compared: Sequence[Compared], model: PathModel | None) -> Iterator[Finding]:
    """More tokens per step than the tree can give at all, or than guesses of these ranks were ever right."""
    for c in compared:
        longest = c.bucket.tree.depth + 1
        if c.change.measured > longest + 1e-9:
            yield Finding(
                kind=FindingKind.ABOVE_BOUND,
                where=where(c.bucket),
                seen=f"{c.change.measured:.2f} tokens per step, a tree of depth {longest - 1} gives {longest} at most",
                next_step="a deeper tree runs than the plan's, or the bonus token is counted twice",
            )
            continue
        bound = None if model is None or c.bucket.tree.is_chain else cover_bound(model, c.bucket.tree)
        if (
            bound is not None
            and replace(c.change, planned=bound).verdict is DriftVerdict.DRIFT
            and c.change.measured > bound
        ):
            yield Finding(
                kind=FindingKind.ABOVE_BOUND,
                where=where(c.bucket),
                seen=f"{c.change.measured:.2f} tokens per step, all guesses of these ranks were right for {bound:.2f}",
                next_step="another drafter or an approximate rule (typical acceptance) runs: check both",
            )


def larger_accepts_less(sources: Sequence[Measured], candidates: PlannedBuckets, gate: float) -> Iterator[Finding]:
    """A tree that holds another one accepts at least as much of the same traffic (greedy verification)."""
    known = [(source, tree) for source in sources if (tree := _tree(source, candidates)) is not None]
    for (a, small), (b, large) in combinations(sorted(known, key=lambda pair: len(pair[1])), 2):
        if len(small) == len(large) or not set(small.paths) <= set(large.paths):
            continue
        assert a.length is not None
        assert b.length is not None
        change = Change(
            planned=a.length, measured=b.length, planned_error=a.error, measured_error=b.error, gate=gate, comparisons=2
        )
        if a.error is not None and change.verdict is DriftVerdict.DRIFT and change.share < 0.0:
            yield Finding(
                kind=FindingKind.LARGER_TREE_ACCEPTS_LESS,
                where=f"{K.size(len(small))} and {K.count(len(large))}",
                seen=f"{b.length:.2f} tokens per step with {K.size(len(large))}, {a.length:.2f} with "
                f"{K.size(len(small))}",
                next_step="the engine keeps the wrong KV after a step (TensorRT-LLM #10343), or traffic differs: run "
                "treeopt verify, and use the smaller tree until then",
            )


def collapse(windows: Sequence[LogWindow], gate: float) -> Iterator[Finding]:
    """Acceptance after a pause of drafting against that before it, at the same draft length."""
    off = [i for i, window in enumerate(windows) if window.is_off]
    if not off:
        return
    before = [w for w in windows[: off[0]] if not w.is_off]
    after = [w for w in windows[off[0] :] if not w.is_off]
    for length in sorted({w.draft_tokens for w in before} & {w.draft_tokens for w in after}, key=lambda k: k or 0):
        first, then = (pooled([w for w in part if w.draft_tokens == length]) for part in (before, after))
        if first.error is None or then.error is None:
            continue
        change = Change(
            planned=first.length, measured=then.length, planned_error=first.error, measured_error=then.error, gate=gate
        )
        if change.verdict is DriftVerdict.DRIFT and change.share < 0.0:
            yield Finding(
                kind=FindingKind.COLLAPSE_AFTER_PAUSE,
                where="all batch sizes" if length is None else K.size(length + 1),
                seen=f"{first.length:.2f} tokens per step until drafting stopped (line {windows[off[0]].line}), "
                f"{then.length:.2f} since",
                next_step="the drafter's state went stale (TensorRT-LLM #16888): draft one token at least at every "
                "batch size",
            )


def stopped_for_good(metrics: Metrics, candidates: PlannedBuckets) -> Iterator[Finding]:
    """Drafts at first and none from some iteration on, where every bucket drafts: TensorRT-LLM's threshold."""
    windows = metrics.windows
    last = max((i for i, window in enumerate(windows) if not window.is_off), default=None)
    if metrics.kind != "trtllm-stats" or last is None or not all(bucket.speculate for bucket in candidates.every):
        return
    since = len(windows) - 1 - last
    if since < MIN_WINDOWS or any(window.is_off for window in windows[:last]):
        return
    yield Finding(
        kind=FindingKind.STOPPED_FOR_GOOD,
        where=_all(candidates),
        seen=f"no {DRAFT_TOKENS} in the last {since} of {len(windows)} iterations",
        next_step="acceptance_rate_threshold switches speculation off until a restart once acceptance falls below it: "
        "take it out of the configuration, and restart",
    )


def _all(candidates: PlannedBuckets) -> str:
    return where(candidates.every[0]) if len(candidates.every) == 1 else "all batch sizes"


def _is_chain_instead(c: Compared) -> bool:
    """Whether a bushy tree's counters look like those of its top guesses alone."""
    tree = c.bucket.tree
    if tree.is_chain or c.measured.draft_tokens != tree.depth or not c.depths:
        return False
    chain = float(1.0 + chain_survival(c.bucket)[: len(c.depths)].sum())
    return abs(c.change.measured / chain - 1.0) <= c.change.gate / 2.0


def _tree(source: Measured, candidates: PlannedBuckets) -> DraftTree | None:
    """The tree that a source counts: the plan's of that size, else a chain of K; None for several lengths."""
    if source.length is None or source.draft_tokens is None or not source.drafts_about(source.draft_tokens):
        return None
    found = candidates.that_draft(source)
    if len(found) == 1:
        return found[0].tree
    return DraftTree.chain(source.draft_tokens) if source.survival is not None else None
