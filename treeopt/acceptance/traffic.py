"""The acceptance that a plan is for: one kind of traffic or several, and f where a draft's own drafts start."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.draft_lengths import DraftLengths, mixed_lengths
from treeopt.acceptance.dynamic_tree import (
    DynamicTreeCaps,
    DynamicTreeValues,
    ModelValues,
    ValuedModel,
    dynamic_tree_shape,
)
from treeopt.acceptance.intervals import bootstrap_tokens
from treeopt.acceptance.mixture import Mixture
from treeopt.acceptance.model import PathModel, exact_lengths, expected_tokens, path_probabilities
from treeopt.acceptance.profile import RankProfile
from treeopt.acceptance.replay import (
    Replay,
    accepted_on,
    draft_starts,
    replay_accepted,
)
from treeopt.acceptance.smoothing import SmoothedPaths
from treeopt.acceptance.trace import Trace
from treeopt.arrays import BoolArray, FloatArray, IntArray
from treeopt.draft_family import MAX_TOPK, Draft, DynamicTree
from treeopt.errors import InputError
from treeopt.tree import MAX_NODES, DraftTree

if TYPE_CHECKING:
    from treeopt.acceptance.dynamic_trace import TraceValues

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of traffic: its evidence, and its share of the drafts; `model` is f in place of the profile's own."""

    name: str
    weight: float
    profile: RankProfile
    trace: Trace | None = None
    model: PathModel | None = None
    _values: list[TraceValues] = field(default_factory=list, compare=False, repr=False)
    _measured: list[PathModel] = field(default_factory=list, compare=False, repr=False)

    @property
    def has_confidence(self) -> bool:
        """Whether the drafter's own probabilities were recorded: they shape dynamic trees."""
        return self.trace is not None and self.trace.topk_prob is not None

    @property
    def measured(self) -> PathModel:
        """f as it was measured, over all positions."""
        if self.model is not None:
            return self.model
        if not self._measured:
            self._measured.append(self.profile.model())
        return self._measured[0]

    def model_under(self, draft: Draft | None) -> PathModel:
        """f where the draft's own drafts start; over all positions without a draft or without a trace."""
        if draft is None or self.trace is None:
            return self.measured
        like = self.measured if isinstance(self.measured, SmoothedPaths) else None
        return SmoothedPaths(self.trace.count(self.starts(draft), unit=self.trace.depth), like=like)

    def starts(self, draft: Draft) -> npt.NDArray[np.integer]:
        """`[T]` how often a draft starts at each position of the trace."""
        assert self.trace is not None
        return draft_starts(self.trace, self.accepted(draft))

    def accepted(self, draft: Draft) -> IntArray:
        """`[T]` tokens accepted at each position of the trace; of a dynamic tree by the recorded confidence."""
        assert self.trace is not None
        if isinstance(draft, DynamicTree):
            return self.values.accepted(draft)
        return accepted_on(self.trace, _within(draft, self.trace.depth))

    @property
    def values(self) -> TraceValues:
        """The E of dynamic trees, all positions alike.

        Raises:
            EvidenceError: no confidence was recorded.
        """
        assert self.trace is not None
        if not self._values:
            from treeopt.acceptance.dynamic_trace import TraceValues  # only dynamic trees need it

            limits = DynamicTreeCaps(num_steps=self.trace.depth, topk=MAX_TOPK, num_draft_tokens=MAX_NODES)
            self._values.append(TraceValues.of(self.trace, limits))
        return self._values[0]


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What was computed of each draft: the same one is asked for again and again during a search."""

    models: dict[Draft | None, PathModel] = field(default_factory=dict)
    f: dict[Draft, FloatArray] = field(default_factory=dict)
    replays: dict[Draft, list[Replay]] = field(default_factory=dict)
    drawn: dict[tuple[Draft, int], FloatArray] = field(default_factory=dict)
    other: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All kinds of traffic that a plan is for; the weights sum to 1."""

    parts: tuple[Part, ...]
    _known: _Known = field(default_factory=_Known, compare=False, repr=False)

    def recall(self, key: Hashable, make: Callable[[], T]) -> T:
        """What follows from this traffic alone, made once: the value of `make` under a key of its own."""
        if key not in self._known.other:
            self._known.other[key] = make()
        found: T = self._known.other[key]
        return found

    def model_under(self, draft: Draft | None) -> PathModel:
        """f of the mixture where the draft's own drafts start, smoothed for drafts that are not this one."""
        draft = None if draft is None else self._replayable(draft)
        if draft not in self._known.models:
            models = tuple(part.model_under(draft) for part in self.parts)
            weights = tuple(part.weight for part in self.parts)
            self._known.models[draft] = models[0] if len(models) == 1 else Mixture(models, weights)
        return self._known.models[draft]

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
    def lengths_of_drafts(self) -> DraftLengths | None:
        """How long drafts are that are not made in every step; None where all are."""
        return mixed_lengths([(part.weight, part.profile.lengths) for part in self.parts])

    @property
    def all_positions(self) -> PathModel:
        """f of the mixture as it was measured."""
        return self.model_under(None)

    def tree_of(self, draft: Draft) -> DraftTree:
        """A draft's tree; a dynamic one's is that which it builds on average confidence."""
        return draft if isinstance(draft, DraftTree) else dynamic_tree_shape(self.all_positions, draft)

    def path_probabilities(self, draft: Draft) -> FloatArray:
        """`[N]` f of the draft's tree where its own drafts start, smoothed: a tree chosen by counts flatters itself."""
        known = self._replayable(draft)
        if known not in self._known.f:
            self._known.f[known] = path_probabilities(self.model_under(known), self.tree_of(known))
        return self._known.f[known]

    def tokens(self, draft: Draft) -> float:
        """E where the draft's own drafts start."""
        known = self._replayable(draft)
        if isinstance(known, DynamicTree):
            return sum(p.weight * r.tokens_per_step for p, r in zip(self.parts, self.replays(known), strict=True))
        return expected_tokens(self.path_probabilities(known))

    def lengths(self, draft: Draft) -> FloatArray:
        """`[D + 1]` probability that a step accepts exactly 0, 1, ... D tokens, where the draft's own drafts start."""
        known = self._replayable(draft)
        if isinstance(known, DraftTree):
            return exact_lengths(known, self.path_probabilities(known))
        lengths = np.zeros(known.num_steps + 1)
        for part in self.parts:
            counts = np.bincount(part.accepted(known), part.starts(known), len(lengths))
            lengths += part.weight * counts / counts.sum()
        return lengths

    def drawn_tokens(self, draft: Draft, seed: int) -> FloatArray:
        """`[replicates]` E of the draft over redrawn documents, parts independently; rows of two drafts are paired."""
        if (draft, seed) not in self._known.drawn:
            replays = self.replays(draft)
            drawn = [
                self.parts[i].weight * bootstrap_tokens([replays[i]], seed=(seed, n))[:, 0]
                for n, i in enumerate(self._in_order)
            ]
            self._known.drawn[draft, seed] = np.asarray(sum(drawn))
        return self._known.drawn[draft, seed]

    @property
    def _in_order(self) -> list[int]:
        """The parts by their content: in which order they were named changes no draw."""
        return sorted(range(len(self.parts)), key=lambda i: (self.parts[i].profile.sha256, self.parts[i].weight))

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
        if draft not in self._known.replays:
            traced = [(part, part.trace) for part in self.parts if part.trace is not None]
            self._known.replays[draft] = [replay_accepted(trace, part.accepted(draft)) for part, trace in traced]
        return self._known.replays[draft]

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


@dataclass(frozen=True)
class _MixedValues:
    """The E of dynamic trees over several kinds of traffic."""

    parts: tuple[DynamicTreeValues, ...]
    weights: tuple[float, ...]

    @property
    def limits(self) -> DynamicTreeCaps:
        """What all parts reach."""
        limits = [part.limits for part in self.parts]
        return DynamicTreeCaps(
            num_steps=min(own.num_steps for own in limits),
            topk=min(own.topk for own in limits),
            num_draft_tokens=min(own.num_draft_tokens for own in limits),
        )

    @property
    def basis(self) -> str:
        """What the values of the first part rest on."""
        return self.parts[0].basis

    def tokens(self, steps: int, topk: int) -> FloatArray:
        """`[limits.num_draft_tokens + 1]` E by N, the parts' weighted (see `DynamicTreeValues`)."""
        size = self.limits.num_draft_tokens + 1
        return np.asarray(
            sum(w * part.tokens(steps, topk)[:size] for w, part in zip(self.weights, self.parts, strict=True))
        )


def _mixed(values: Sequence[DynamicTreeValues], weights: Sequence[float]) -> DynamicTreeValues:
    return values[0] if len(values) == 1 else _MixedValues(tuple(values), tuple(weights))


def _split(part: Part, held_out: float, seed: int) -> tuple[Part, Part]:
    if part.trace is None:
        raise InputError(f"{part.name} has no documents for --holdout", hint="give a trace (NPZ) with doc_id and pos")
    trace = part.trace
    count = round(held_out * trace.documents)
    if not 0 < count < trace.documents:
        raise InputError(
            f"{trace.documents} documents do not split at --holdout {held_out:g}", hint="record more documents"
        )
    out = np.zeros(trace.documents, dtype=np.bool_)
    out[np.random.default_rng(seed).permutation(trace.documents)[:count]] = True

    def keep(documents: BoolArray) -> Part:
        kept = trace.select(documents)
        profile = replace(part.profile, evidence=kept.count(), documents=kept.documents)
        return Part(name=part.name, weight=part.weight, profile=profile, trace=kept)

    return keep(~out), keep(out)


def _within(tree: DraftTree, depth: int) -> DraftTree:
    return tree if tree.depth <= depth else DraftTree(tuple(p for p in tree.paths if len(p) <= depth))
