"""The price of one serving step as a sum of kernel times and what the engine adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treeopt.arrays import FloatArray
from treeopt.cost.axis import Axis
from treeopt.cost.base import IntLike
from treeopt.cost.cliff import cliff
from treeopt.cost.drafter import Drafter
from treeopt.cost.dtype import Dtype
from treeopt.cost.engine import EngineSteps
from treeopt.cost.forward import Forward
from treeopt.cost.model import ModelShape
from treeopt.cost.prices import Prices
from treeopt.cost.terms import ExpertVisits, StepTerms, Term, TermError, TermFactor, scaled
from treeopt.cost.timing import OperatorTimes
from treeopt.errors import InputError


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
        _ = self._prices  # shares out, or says why that cannot be

    @property
    def ridge_tokens(self) -> float:
        """Tokens per step at which streaming the weights takes as long as the arithmetic."""
        return self.times.ridge_tokens(Dtype(self.dtype))

    @property
    def memory_bytes(self) -> int:
        """Memory that the target's weights take on each GPU; KV cache and drafter come on top."""
        return self._prices.target.network.weight_bytes(self.dtype)

    def kv_bytes(self, context: int) -> int:
        """KV cache of one request per GPU, in 16 bit; layers with a window keep that much."""
        net = self._prices.target.network
        windowed, window = (net.window.layers, net.window.tokens) if net.window else (0, 0)
        tokens = (net.layers - windowed) * context + windowed * min(context, window)
        return round(Dtype(self.dtype).wide.bytes_per_value * net.attention.kv_values * tokens)

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: npt.NDArray[np.int64], context: IntLike
    ) -> FloatArray:
        """Seconds per step for every element of the broadcast inputs; see `StepCost`."""
        B, L = Axis.of(batch), Axis.of(context)
        total = np.zeros(np.broadcast_shapes(*map(np.shape, (batch, nodes, depth, context)), widths.shape[:-1]))
        target_s = self._prices.target_s(B.values, int(np.max(nodes, initial=1)), L.values, self.factors)
        total += target_s[B.at, np.asarray(nodes) - 1, L.at]
        for term, seconds in self._tree_terms(batch, nodes, depth, widths, context):
            total += scaled(term, seconds, self.factors)
        return total

    def terms(self, *, batch: int, nodes: int, depth: int, widths: Sequence[int], context: int) -> StepTerms:
        """One step in parts; the arguments are those of `step_time_s` at one point."""
        of_target = self._prices.of_target((batch,), nodes, (context,))
        found = {term: seconds[0, nodes - 1, 0] for term, seconds in of_target.items()}
        found |= dict(self._tree_terms(batch, nodes, depth, np.array(widths, dtype=np.int64), context))
        every = ((term, scaled(term, seconds, self.factors)) for term, seconds in found.items())
        return StepTerms(**{f"{term}_s": float(np.sum(seconds)) for term, seconds in every})

    def visits(self, tokens: int) -> ExpertVisits | None:
        """Distinct experts that a layer is expected to visit for a step of `tokens`, padded; None without experts."""
        experts = self.model.experts
        if experts is None:
            return None
        return ExpertVisits(float(experts.visited(self.engine.padded(np.array(float(tokens))))), experts.count)

    def cliff(self, tokens: int) -> str | None:
        """A sentence where a step of `tokens`, padded, is at a jump or spike of its measured GEMMs and experts."""
        target = self._prices.target

        def time_s(several: FloatArray) -> FloatArray:
            return target.layers_s(several) + target.experts_s(several) + target.lm_head_s(several)

        return cliff(time_s, int(self.engine.padded(np.array(float(tokens)))))

    def scaled(self, term: Term | str, factor: float) -> ModelStep:
        """The same step with one term `factor` times as long."""
        step = replace(self, factors=(*self.factors, TermFactor(Term(term), factor)))
        step.__dict__["_prices"] = self._prices  # factors come on top of the same prices
        return step

    def error_p90(self) -> tuple[TermError, ...]:
        """How far off each term may be, by the held-out errors of its kind of kernel.

        The drafter's is the largest among its kinds; the engine's is that of whole steps which its constants were not
        fitted to.
        """
        return tuple(TermError(term, self._p90(term)) for term in Term)

    def notes(self, *, batch: int, nodes: int, context: int) -> list[str]:
        """Sentences on where steps of up to `batch`, `nodes` and `context` leave what was measured or meet a cliff."""
        tokens = int(self.engine.padded(np.array(float(batch * nodes))))
        reaches = self._prices.target.reaches(tokens, requests=batch, queries=nodes, keys=context + nodes)
        notes = (*self.engine.notes(model=self.model.name, tokens=tokens), self.drafter.note, self.cliff(tokens))
        found = [*(self.times.beyond(*reach) for reach in reaches), *notes]
        return list(dict.fromkeys(sentence for sentence in found if sentence))

    def _tree_terms(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: npt.NDArray[np.int64], context: IntLike
    ) -> Iterator[tuple[Term, FloatArray]]:
        """`[...]` seconds of the terms that the tree's shape changes."""
        B, N, D, L = (np.asarray(value, dtype=np.int64) for value in (batch, nodes, depth, context))
        prices, batches = self._prices, Axis.of(B)
        yield Term.DRAFTER, prices.drafting.time_s(B, D, widths, L)
        compaction_s = prices.of_compaction(batches.values, int(D.max(initial=0)))
        # The accepted tokens of a chain already stand where they belong.
        yield Term.COMPACTION, compaction_s[batches.at, D] * (N != D + 1)
        yield Term.ENGINE, self.engine.time_s(B, N, passes=prices.drafting.passes(D))

    def _p90(self, term: Term) -> float | None:
        if term is Term.ENGINE:
            return self.engine.evidence.p90 if self.engine.evidence else None
        families = self._prices.drafting.families if term is Term.DRAFTER else (term.family,)
        dtype = Dtype(self.dtype) if term is not Term.LM_HEAD else Dtype(self.dtype).wide
        errors = (family and self.times.error(family, dtype) for family in families)
        return max((error.p90 for error in errors if error), default=None)

    @cached_property
    def _prices(self) -> Prices:
        network = self.model.shard(self.tp)
        target = Forward(network=network, times=self.times, dtype=Dtype(self.dtype), tp=self.tp)
        try:
            drafting = self.drafter.drafting(target)
        except InputError as error:
            raise InputError(f"drafter {self.drafter.kind}: {error}", hint=error.hint) from None
        return Prices(target=target, drafting=drafting, engine=self.engine)
