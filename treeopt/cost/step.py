"""The price of one serving step as a sum of kernel times and what the engine adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from treeopt.cost.axis import Axis
from treeopt.cost.base import FloatArray, IntLike
from treeopt.cost.drafter import Drafter
from treeopt.cost.drafting import Drafting
from treeopt.cost.dtype import Dtype
from treeopt.cost.engine import EngineSteps
from treeopt.cost.forward import Forward
from treeopt.cost.model import ModelShape
from treeopt.cost.terms import ExpertVisits, StepTerms, Term, TermError, TermFactor
from treeopt.cost.timing import OperatorTimes
from treeopt.errors import InputError

Sizes = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelStep:
    """`StepCost` from the sizes of the models and the times of their kernels; `Forward` says which kernels count.

    The target's kernels run B x N tokens, padded to the engine's next captured size; its attention reads each
    request's KV once. `factors` scale single terms, to ask what their error would change.

    At fixed batch, nodes and context the time never falls as depth or widths grow, with one exception: a chain
    (nodes = depth + 1) needs no compaction, so it can cost less than a shallower tree of as many nodes.

    Raises:
        InputError: a dtype that the GPU lacks, a tp below 1 or that the heads do not divide by, a factor not above 0.
    """

    model: ModelShape
    times: OperatorTimes
    drafter: Drafter
    dtype: str = "bf16"
    tp: int = 1
    engine: EngineSteps = field(default_factory=EngineSteps)
    factors: tuple[TermFactor, ...] = ()

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise InputError(f"tp={self.tp}", hint="give the number of GPUs that share the model, 1 or more")
        for term, factor in self.factors:
            if not 0.0 < factor < np.inf:
                raise InputError(f"{term} counts {factor:g} times", hint="give a factor above 0")
        self.times.ridge_tokens(Dtype(self.dtype))
        self.times.ridge_tokens(Dtype(self.dtype).wide)
        _ = self._target  # shares out, or says why that cannot be
        try:
            _ = self._drafting
        except InputError as error:
            raise InputError(f"drafter {self.drafter.kind}: {error}", hint=error.hint) from None

    @property
    def ridge_tokens(self) -> float:
        """Tokens per step at which streaming the weights takes as long as the arithmetic."""
        return self.times.ridge_tokens(Dtype(self.dtype))

    @property
    def memory_bytes(self) -> int:
        """Memory that the target's weights take on each GPU; KV cache and drafter come on top."""
        return self._target.network.weight_bytes(self.dtype)

    def kv_bytes(self, context: int) -> int:
        """KV cache of one request per GPU, in 16 bit; layers with a window keep that much."""
        net = self._target.network
        windowed, window = (net.window.layers, net.window.tokens) if net.window else (0, 0)
        tokens = (net.layers - windowed) * context + windowed * min(context, window)
        return round(Dtype(self.dtype).wide.bytes_per_value * net.attention.kv_values * tokens)

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: npt.NDArray[np.int64], context: IntLike
    ) -> FloatArray:
        """Seconds per step for every element of the broadcast inputs; see `StepCost`."""
        B, N, L = map(Axis.of, (batch, nodes, context))
        total = np.zeros(np.broadcast_shapes(*map(np.shape, (batch, nodes, depth, context)), widths.shape[:-1]))
        total += self._target_s(B.values, N.values, L.values)[B.at, N.at, L.at]
        for _, seconds in self._tree_terms(batch, nodes, depth, widths, context):
            total += seconds
        return total

    def terms(self, *, batch: int, nodes: int, depth: int, widths: Sequence[int], context: int) -> StepTerms:
        """One step in parts; the arguments are those of `step_time_s` at one point."""
        found = dict(self._target_terms((batch,), (nodes,), (context,)))
        found |= dict(self._tree_terms(batch, nodes, depth, np.array(widths, dtype=np.int64), context))
        return StepTerms(**{f"{term}_s": float(np.sum(seconds)) for term, seconds in found.items()})

    def visits(self, tokens: int) -> ExpertVisits | None:
        """Distinct experts that a layer is expected to visit for a step of `tokens`, padded; None without experts."""
        experts = self.model.experts
        if experts is None:
            return None
        return ExpertVisits(float(experts.visited(self.engine.padded(np.array(float(tokens))))), experts.count)

    def scaled(self, term: Term | str, factor: float) -> ModelStep:
        """The same step with one term `factor` times as long."""
        return replace(self, factors=(*self.factors, TermFactor(Term(term), factor)))

    def error_p90(self) -> tuple[TermError, ...]:
        """How far off each term may be, by the held-out errors of its kind of kernel.

        The drafter's is the largest among its kinds; the engine's is that of whole steps which its constants were not
        fitted to.
        """
        return tuple(TermError(term, self._p90(term)) for term in Term)

    def notes(self, *, batch: int, nodes: int, context: int) -> list[str]:
        """Sentences on where steps of up to `batch`, `nodes` and `context` leave what was measured, each once."""
        tokens = int(self.engine.padded(np.array(float(batch * nodes))))
        reaches = self._target.reaches(tokens, requests=batch, queries=nodes, keys=context + nodes)
        notes = (*self.engine.notes(model=self.model.name, tokens=tokens), self.drafter.note)
        found = [*(self.times.beyond(*reach) for reach in reaches), *notes]
        return list(dict.fromkeys(sentence for sentence in found if sentence))

    def _target_terms(self, batches: Sizes, nodes: Sizes, contexts: Sizes) -> Iterator[tuple[Term, FloatArray]]:
        """`[B, N, L]` seconds, or what broadcasts to it, of the terms that the tree's shape does not change."""
        B, N, L = np.ix_(*(np.array(sizes, dtype=np.float64) for sizes in (batches, nodes, contexts)))
        target, T = self._target, Axis.of(B * N)
        tokens = np.array(T.values, dtype=np.float64)
        padded = self.engine.padded(tokens)
        yield self._scaled(Term.LAYERS, target.layers_s(padded)[T.at])
        yield self._scaled(Term.EXPERTS, target.experts_s(padded)[T.at])
        yield self._scaled(Term.ATTENTION, target.attention_s(B, N, L + N))
        yield self._scaled(Term.LM_HEAD, target.lm_head_s(padded)[T.at])
        yield self._scaled(Term.ELEMENTWISE, target.elementwise_s(padded)[T.at])
        yield self._scaled(Term.ALL_REDUCE, (target.all_reduce_s(padded) + target.gather_s(padded))[T.at])
        yield self._scaled(Term.SAMPLING, target.sampling_s(tokens)[T.at])

    def _tree_terms(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: npt.NDArray[np.int64], context: IntLike
    ) -> Iterator[tuple[Term, FloatArray]]:
        """`[...]` seconds of the terms that the tree's shape changes."""
        B, N, D, L = (np.asarray(value, dtype=np.int64) for value in (batch, nodes, depth, context))
        yield self._scaled(Term.DRAFTER, self._drafting.time_s(B, D, widths, L))
        batches = Axis.of(B)
        compaction_s = self._compaction_s(batches.values, int(D.max(initial=0)))
        # The accepted tokens of a chain already stand where they belong.
        yield self._scaled(Term.COMPACTION, compaction_s[batches.at, D] * (N != D + 1))
        engine_s = self.engine.time_s(B * N, speculative=N > 1, passes=self._drafting.passes(D))
        yield self._scaled(Term.ENGINE, engine_s)

    def _scaled(self, term: Term, seconds: FloatArray) -> tuple[Term, FloatArray]:
        for scaled, factor in self.factors:
            if scaled is term:
                seconds = factor * seconds
        return term, seconds

    # The search asks for few batch sizes again and again: their prices are kept.
    @cached_property
    def _target_s(self) -> Callable[[Sizes, Sizes, Sizes], FloatArray]:
        def price(batches: Sizes, nodes: Sizes, contexts: Sizes) -> FloatArray:
            total = np.zeros((len(batches), len(nodes), len(contexts)))
            for _, seconds in self._target_terms(batches, nodes, contexts):
                total += seconds
            return total

        return lru_cache(maxsize=64)(price)

    @cached_property
    def _compaction_s(self) -> Callable[[Sizes, int], FloatArray]:
        def price(batches: Sizes, depth: int) -> FloatArray:
            moved = np.arange(depth + 1, dtype=np.float64)
            time_s = self._target.compaction_s(np.array(batches, dtype=np.float64)[:, None], moved)
            return np.maximum.accumulate(time_s, axis=1)  # a measured copy may fall where the contract forbids it

        return lru_cache(maxsize=64)(price)

    def _p90(self, term: Term) -> float | None:
        if term is Term.ENGINE:
            return self.engine.evidence.p90 if self.engine.evidence else None
        families = self._drafting.families if term is Term.DRAFTER else (term.family,)
        dtype = Dtype(self.dtype) if term is not Term.LM_HEAD else Dtype(self.dtype).wide
        errors = (family and self.times.error(family, dtype) for family in families)
        return max((error.p90 for error in errors if error), default=None)

    @cached_property
    def _target(self) -> Forward:
        return Forward(network=self.model.shard(self.tp), times=self.times, dtype=Dtype(self.dtype), tp=self.tp)

    @cached_property
    def _drafting(self) -> Drafting:
        return self.drafter.drafting(self._target)
