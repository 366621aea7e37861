"""The seconds of a step's terms by sizes, each computed once: a search asks for the same few sizes again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Final

import numpy as np

from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.arrays import Axis, FloatArray
from treeopt.cost.drafter import Drafter
from treeopt.cost.drafting import Drafting
from treeopt.cost.engine import EngineSteps
from treeopt.cost.formats import Dtype, WeightFormats
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.times import KernelTimes
from treeopt.cost.model import ModelShape
from treeopt.cost.part_drafts import mean_engine_s, mean_target_s
from treeopt.cost.terms import Term, TermFactor, scaled
from treeopt.errors import InputError

Sizes = tuple[int, ...]

# Tables reach to the next multiple: a tree of one node more is in the same table.
_BLOCK: Final = 64
_LAW_BLOCK: Final = 8  # each of its sizes has a law of what is verified
_KEPT: Final = 64


# The one place where prices are kept: steps that differ in their factors alone share them.
@lru_cache(maxsize=32)
def tables_of(
    model: ModelShape,
    times: KernelTimes,
    drafter: Drafter,
    formats: WeightFormats,
    kv_dtype: Dtype,
    tp: int,
    engine: EngineSteps,
    lengths: DraftLengths | None,
) -> StepTables:
    """Target and drafter on one GPU's part, with what was computed of them.

    Raises:
        InputError: a model or drafter that does not share out over `tp` GPUs.
    """
    target = ForwardPass(network=model.shard(tp), times=times, formats=formats, kv_dtype=kv_dtype, tp=tp)
    try:
        drafting = drafter.drafting(target)
    except InputError as error:
        raise InputError(f"drafter {drafter.kind}: {error}", hint=error.hint) from None
    return StepTables(target=target, drafting=drafting, engine=engine, lengths=lengths)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTables:
    """The seconds of every term by sizes.

    Attributes:
        target: its kernels.
        drafting: the drafter's.
        engine: what it adds, and how it pads.
        lengths: how long drafts are that are not made in every step.
    """

    target: ForwardPass
    drafting: Drafting
    engine: EngineSteps
    lengths: DraftLengths | None

    def of_target(self, batches: Sizes, nodes: int, contexts: Sizes) -> Mapping[Term, FloatArray]:
        """`[B, N, L]` seconds, or what broadcasts to it, of the terms that the tree's shape does not change.

        N is 1, 2, ... `nodes` at least.
        """
        return self._of_target(batches, self._up_to(nodes), contexts)

    def target_s(self, batches: Sizes, nodes: int, contexts: Sizes, factors: tuple[TermFactor, ...]) -> FloatArray:
        """`[B, N, L]` their sum, each term times its factors."""
        return self._target_s(batches, self._up_to(nodes), contexts, factors)

    def of_compaction(self, batches: Sizes, depth: int) -> FloatArray:
        """`[B, D + 1]` seconds to move the KV of 0, 1, ... `depth` accepted tokens at least."""
        return self._of_compaction(batches, -(-(depth + 1) // _BLOCK) * _BLOCK)

    def of_engine(self, batches: Sizes, nodes: int) -> FloatArray:
        """`[B, N]` mean seconds beyond the kernels where a request drafts in some steps only."""
        return self._of_engine(batches, self._up_to(nodes))

    def _up_to(self, nodes: int) -> int:
        block = _BLOCK if self.lengths is None else _LAW_BLOCK
        return -(-nodes // block) * block

    @cached_property
    def _of_engine(self) -> Callable[[Sizes, int], FloatArray]:
        assert self.lengths is not None
        return lru_cache(maxsize=_KEPT)(partial(mean_engine_s, self.engine, self.lengths))

    @cached_property
    def _of_target(self) -> Callable[[Sizes, int, Sizes], Mapping[Term, FloatArray]]:
        return lru_cache(maxsize=_KEPT)(self._price_target)

    @cached_property
    def _target_s(self) -> Callable[[Sizes, int, Sizes, tuple[TermFactor, ...]], FloatArray]:
        def add(batches: Sizes, nodes: int, contexts: Sizes, factors: tuple[TermFactor, ...]) -> FloatArray:
            total = np.zeros((len(batches), nodes, len(contexts)))
            for term, seconds in self._of_target(batches, nodes, contexts).items():
                total += scaled(term, seconds, factors)
            return total

        return lru_cache(maxsize=_KEPT)(add)

    @cached_property
    def _of_compaction(self) -> Callable[[Sizes, int], FloatArray]:
        return lru_cache(maxsize=_KEPT)(self._price_compaction)

    def _price_target(self, batches: Sizes, nodes: int, contexts: Sizes) -> Mapping[Term, FloatArray]:
        if self.lengths is not None:
            return mean_target_s(self.target, self.engine, self.lengths, batches, nodes, contexts)
        B, N, L = np.ix_(np.array(batches, dtype=np.float64), np.arange(1.0, nodes + 1), np.array(contexts, np.float64))
        target, T = self.target, Axis.of(B * N)
        tokens = np.array(T.values, dtype=np.float64)
        padded = self.engine.padded(tokens)
        return {
            Term.LAYERS: target.layers_s(padded)[T.at],
            Term.EXPERTS: target.experts_of_requests_s(B, N, padded[T.at]),
            Term.ATTENTION: np.maximum.accumulate(target.attention_s(B, N, L + N), axis=1),
            Term.LM_HEAD: target.lm_head_s(padded)[T.at],
            Term.ELEMENTWISE: target.elementwise_s(padded)[T.at],
            Term.ALL_REDUCE: (target.all_reduce_s(padded) + target.gather_s(padded))[T.at],
            Term.SAMPLING: target.sampling_s(tokens)[T.at],
        }

    def _price_compaction(self, batches: Sizes, moved: int) -> FloatArray:
        time_s = self.target.compaction_s(np.array(batches, dtype=np.float64)[:, None], np.arange(1.0 * moved))
        return np.maximum.accumulate(time_s, axis=1)  # a measured copy may fall where the contract forbids it
