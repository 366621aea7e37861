"""The acceptance that a plan is for: one kind of traffic or several, and f where a draft's own drafts start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from treeopt.acceptance.dynamic_trace import TraceValues
from treeopt.acceptance.dynamic_tree import (
    DynamicTreeCaps,
    DynamicTreeValues,
    ModelValues,
    ValuedModel,
    dynamic_tree_shape,
    dynamic_tree_widths,
)
from treeopt.acceptance.intervals import bootstrap_tokens
from treeopt.acceptance.mixture import Mixture
from treeopt.acceptance.model import PathModel, exact_lengths, expected_tokens, path_probabilities
from treeopt.acceptance.profile import RankProfile
from treeopt.acceptance.replay import Replay, draft_starts, replay_accepted
from treeopt.acceptance.replay import accepted_lengths as accepted_on
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.acceptance.trace import Trace
from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.cost.step_cost import StepCost
from treeopt.draft_family import MAX_TOPK, Draft, DynamicTree
from treeopt.errors import InputError
from treeopt.solve.problem import Point
from treeopt.solve.result import Priced
from treeopt.solve.search import price_tree
from treeopt.tree import MAX_NODES, DraftTree


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of traffic: its evidence, and its share of the drafts."""

    name: str
    weight: float
    profile: RankProfile
    trace: Trace | None = None

    @property
    def has_confidence(self) -> bool:
        """Whether the drafter's own probabilities were recorded: they shape dynamic trees."""
        return self.trace is not None and self.trace.topk_prob is not None

    def model_under(self, draft: Draft | None) -> PathModel:
        """f where the draft's own drafts start; over all positions without a draft or without a trace."""
        if draft is None or self.trace is None:
            return self.profile.model()
        return SmoothedPaths(self.trace.count(self.starts(draft) / self.trace.depth))

    def starts(self, draft: Draft) -> IntArray:
        """`[T]` how often a draft starts at each position of the trace."""
        assert self.trace is not None
        return draft_starts(self.trace, self.accepted(draft))

    def accepted(self, draft: Draft) -> IntArray:
        """`[T]` tokens accepted at each position of the trace; of a dynamic tree by the recorded confidence."""
        assert self.trace is not None
        if isinstance(draft, DynamicTree):
            return self.values.accepted(draft)
        return accepted_on(self.trace.rank, _within(draft, self.trace.depth))

    @cached_property
    def values(self) -> TraceValues:
        """The E of dynamic trees, all positions alike.

        Raises:
            EvidenceError: no confidence was recorded.
        """
        assert self.trace is not None
        limits = DynamicTreeCaps(num_steps=self.trace.depth, topk=MAX_TOPK, num_draft_tokens=MAX_NODES)
        return TraceValues(trace=self.trace, limits=limits)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All kinds of traffic that a plan is for; the weights sum to 1."""

    parts: tuple[Part, ...]

    def model_under(self, draft: Draft | None) -> PathModel:
        """f of the mixture where the draft's own drafts start (see `Part.model_under`)."""
        draft = None if draft is None else self._replayable(draft)
        if draft not in self._models:
            models = tuple(part.model_under(draft) for part in self.parts)
            weights = tuple(part.weight for part in self.parts)
            self._models[draft] = models[0] if len(models) == 1 else Mixture(models, weights)
        return self._models[draft]

    def valued_under(self, draft: Draft | None) -> ValuedModel:
        """The same with the E of dynamic trees there: by recorded confidence where all parts have it.

        Elsewhere the drafter is taken to be as sure in every step as its guesses are right on average.
        """
        model, average = self.model_under(draft), self.all_positions
        if self.has_confidence:
            parts = [p.values if draft is None else p.values.weighted(p.starts(draft)) for p in self.parts]
            return ValuedModel(model, _mixed(parts, [p.weight for p in self.parts]), average)
        limits = DynamicTreeCaps(num_steps=max(model.depth, 1), topk=MAX_TOPK, num_draft_tokens=MAX_NODES)
        return ValuedModel(model, ModelValues.of(model, limits, draft=average), average)

    @property
    def all_positions(self) -> PathModel:
        """f of the mixture as it was measured."""
        return self.model_under(None)

    def tree_of(self, draft: Draft) -> DraftTree:
        """A draft's tree; a dynamic one's is that which it builds on average confidence."""
        return draft if isinstance(draft, DraftTree) else dynamic_tree_shape(self.all_positions, draft)

    def tokens(self, draft: Draft) -> float:
        """E where the draft's own drafts start."""
        known = self._replayable(draft)
        if isinstance(known, DynamicTree):
            return sum(p.weight * r.tokens_per_step for p, r in zip(self.parts, self.replays(known), strict=True))
        return expected_tokens(path_probabilities(self.model_under(known), known))

    def price(self, draft: Draft, cost: StepCost, point: Point) -> Priced:
        """E, step time and tokens/s of any draft; in a dynamic tree's later passes every guess is expanded."""
        batch, context = point
        if isinstance(draft, DraftTree):
            return price_tree(draft, self.model_under(draft), cost, batch=batch, context=context)
        steps, topk, nodes = draft
        widths = dynamic_tree_widths(steps, topk, levels=steps)
        time_s, tokens = float(cost.step_time_s(batch, nodes, steps, widths, context)), self.tokens(draft)
        return Priced(
            nodes=nodes, depth=steps, expected_tokens=tokens, step_time_s=time_s, tokens_per_s=batch * tokens / time_s
        )

    def lengths(self, draft: Draft) -> FloatArray:
        """`[D + 1]` probability that a step accepts exactly 0, 1, ... D tokens, where the draft's own drafts start."""
        known = self._replayable(draft)
        if isinstance(known, DraftTree):
            return exact_lengths(known, path_probabilities(self.model_under(known), known))
        lengths = np.zeros(known.num_steps + 1)
        for part in self.parts:
            counts = np.bincount(part.accepted(known), part.starts(known), len(lengths))
            lengths += part.weight * counts / counts.sum()
        return lengths

    def drawn_tokens(self, draft: Draft, seed: int) -> FloatArray:
        """`[replicates]` E of the draft over redrawn documents, parts independently; rows of two drafts are paired."""
        if (draft, seed) not in self._drawn:
            drawn = [bootstrap_tokens([r], seed=(seed, i))[:, 0] for i, r in enumerate(self.replays(draft))]
            weighted = [part.weight * d for part, d in zip(self.parts, drawn, strict=True)]
            self._drawn[draft, seed] = np.asarray(sum(weighted))
        return self._drawn[draft, seed]

    @property
    def documents(self) -> int:
        """Of the part that has the fewest."""
        return min(part.trace.documents for part in self.parts if part.trace is not None)

    @property
    def depends_on_the_tree(self) -> bool:
        """Whether there is a trace to find a tree's draft starts in."""
        return any(part.trace is not None for part in self.parts)

    @property
    def has_confidence(self) -> bool:
        """Whether every part recorded the drafter's own probabilities."""
        return all(part.has_confidence for part in self.parts)

    @property
    def can_be_replayed(self) -> bool:
        """Whether every part has a trace."""
        return all(part.trace is not None for part in self.parts)

    def replays(self, draft: Draft) -> list[Replay]:
        """The draft replayed on every part that has a trace, nodes below the recorded depth left out."""
        draft = self._replayable(draft)
        if draft not in self._replays:
            traced = [(part, part.trace) for part in self.parts if part.trace is not None]
            self._replays[draft] = [replay_accepted(trace, part.accepted(draft)) for part, trace in traced]
        return self._replays[draft]

    def split(self, held_out: float, seed: int) -> tuple[Traffic, Traffic]:
        """The evidence of random documents to search on, and that of the `held_out` share of them to judge by.

        Raises:
            InputError: a share outside (0, 1), evidence without documents, or too few of them.
        """
        if not 0.0 < held_out < 1.0:
            raise InputError(f"--holdout {held_out:g} is no share", hint="give the share to hold out, such as 0.5")
        pairs = [_split(part, held_out, seed) for part in self.parts]
        return Traffic(parts=tuple(a for a, _ in pairs)), Traffic(parts=tuple(b for _, b in pairs))

    def _replayable(self, draft: Draft) -> Draft:
        """A dynamic tree as it is where the recorded confidence reaches it, else the one of average confidence."""
        if isinstance(draft, DraftTree):
            return draft
        reaches = self.has_confidence and all(
            draft.num_steps <= p.values.limits.num_steps and draft.topk <= p.values.limits.topk for p in self.parts
        )
        return draft if reaches else self.tree_of(draft)

    # The same draft is asked for again and again while its bucket is settled.
    @cached_property
    def _models(self) -> dict[Draft | None, PathModel]:
        return {}

    @cached_property
    def _replays(self) -> dict[Draft, list[Replay]]:
        return {}

    @cached_property
    def _drawn(self) -> dict[tuple[Draft, int], FloatArray]:
        return {}


@dataclass(frozen=True)
class _MixedValues:
    """The E of dynamic trees over several kinds of traffic."""

    parts: tuple[DynamicTreeValues, ...]
    weights: tuple[float, ...]

    @property
    def limits(self) -> DynamicTreeCaps:
        """What all parts reach."""
        limits = [part.limits for part in self.parts]
        steps, topk, nodes = (
            min(getattr(own, name) for own in limits) for name in ("num_steps", "topk", "num_draft_tokens")
        )
        return DynamicTreeCaps(num_steps=steps, topk=topk, num_draft_tokens=nodes)

    @property
    def basis(self) -> str:
        """That of the first."""
        return self.parts[0].basis

    def tokens(self, steps: int, topk: int) -> FloatArray:
        """See `DynamicTreeValues`."""
        size = self.limits.num_draft_tokens + 1
        return np.asarray(
            sum(w * part.tokens(steps, topk)[:size] for w, part in zip(self.weights, self.parts, strict=True))
        )


def _mixed(values: Sequence[DynamicTreeValues], weights: Sequence[float]) -> DynamicTreeValues:
    return values[0] if len(values) == 1 else _MixedValues(tuple(values), tuple(weights))


def _split(part: Part, held_out: float, seed: int) -> tuple[Part, Part]:
    if part.trace is None:
        raise InputError(f"{part.name} has no documents to hold out", hint="give a trace (NPZ) with doc_id and pos")
    trace = part.trace
    count = round(held_out * trace.documents)
    if not 0 < count < trace.documents:
        raise InputError(f"{trace.documents} documents do not split at {held_out:g}", hint="record more documents")
    out = np.zeros(trace.documents, dtype=np.bool_)
    out[np.random.default_rng(seed).permutation(trace.documents)[:count]] = True

    def keep(documents: BoolArray) -> Part:
        kept = trace.select(documents)
        profile = replace(part.profile, evidence=kept.count(), documents=kept.documents)
        return replace(part, profile=profile, trace=kept)

    return keep(~out), keep(out)


def _within(tree: DraftTree, depth: int) -> DraftTree:
    return tree if tree.depth <= depth else DraftTree(tuple(p for p in tree.paths if len(p) <= depth))
