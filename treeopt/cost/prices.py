"""A step's terms as tables, priced once and looked up: the search asks for the same few sizes again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.axis import Axis
from treeopt.cost.drafting import Drafting
from treeopt.cost.engine import EngineSteps
from treeopt.cost.forward import Forward
from treeopt.cost.terms import Term, TermFactor, scaled

Sizes = tuple[int, ...]

# Tables reach to the next multiple: a tree of one node more is in the same table.
_BLOCK: Final = 64
_KEPT: Final = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """The seconds of every term but the engine's, by sizes."""

    target: Forward
    drafting: Drafting
    engine: EngineSteps

    def of_target(self, batches: Sizes, nodes: int, contexts: Sizes) -> Mapping[Term, FloatArray]:
        """`[B, N, L]` seconds, or what broadcasts to it, of the terms that the tree's shape does not change.

        N is 1, 2, ... `nodes` at least.
        """
        return self._of_target(batches, -(-nodes // _BLOCK) * _BLOCK, contexts)

    def target_s(self, batches: Sizes, nodes: int, contexts: Sizes, factors: tuple[TermFactor, ...]) -> FloatArray:
        """`[B, N, L]` their sum, each term times its factors."""
        return self._target_s(batches, -(-nodes // _BLOCK) * _BLOCK, contexts, factors)

    def of_compaction(self, batches: Sizes, depth: int) -> FloatArray:
        """`[B, D + 1]` seconds to move the KV of 0, 1, ... `depth` accepted tokens at least."""
        return self._of_compaction(batches, -(-(depth + 1) // _BLOCK) * _BLOCK)

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
        B, N, L = np.ix_(np.array(batches, dtype=np.float64), np.arange(1.0, nodes + 1), np.array(contexts, np.float64))
        target, T = self.target, Axis.of(B * N)
        tokens = np.array(T.values, dtype=np.float64)
        padded = self.engine.padded(tokens)
        return {
            Term.LAYERS: target.layers_s(padded)[T.at],
            Term.EXPERTS: target.experts_s(padded)[T.at],
            Term.ATTENTION: target.attention_s(B, N, L + N),
            Term.LM_HEAD: target.lm_head_s(padded)[T.at],
            Term.ELEMENTWISE: target.elementwise_s(padded)[T.at],
            Term.ALL_REDUCE: (target.all_reduce_s(padded) + target.gather_s(padded))[T.at],
            Term.SAMPLING: target.sampling_s(tokens)[T.at],
        }

    def _price_compaction(self, batches: Sizes, moved: int) -> FloatArray:
        time_s = self.target.compaction_s(np.array(batches, dtype=np.float64)[:, None], np.arange(1.0 * moved))
        return np.maximum.accumulate(time_s, axis=1)  # a measured copy may fall where the contract forbids it
