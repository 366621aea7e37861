"""The price of one serving step as a sum of kernel times and what the engine adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.arrays import Axis, FloatArray, IntArray
from treeopt.cost.cliff import cliff
from treeopt.cost.drafter import Drafter
from treeopt.cost.engine import EngineSteps
from treeopt.cost.formats import Dtype, WeightFormats
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.attention import GroupedAttention
from treeopt.cost.kernels.experts import MOST_CORRELATION, MOST_SKEW
from treeopt.cost.kernels.family import Family
from treeopt.cost.kernels.rough import rough_prices
from treeopt.cost.kernels.times import KernelTimes
from treeopt.cost.model import ModelShape
from treeopt.cost.step_cost import IntLike
from treeopt.cost.step_tables import StepTables, tables_of
from treeopt.cost.terms import ExpertVisits, StepTerms, Term, TermError, TermFactor, scaled
from treeopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ModelStep:
    """`StepCost` from the sizes of the models and the times of their kernels; `ForwardPass` says which kernels count.

    The target's kernels run B x N tokens, padded to the engine's next captured size; its attention reads each
    request's KV once. `factors` scale single terms, to ask what their error would change. With `lengths` a request
    drafts in some steps only, and the price is the mean over what steps then verify.

    At fixed batch, nodes and context the time never falls as depth or widths grow, with one exception: a chain
    (nodes = depth + 1) needs no compaction, so it can cost less than a shallower tree of as many nodes.

    Raises:
        InputError: a dtype that the GPU lacks, a tp below 1 or that the heads do not divide by, a factor not above 0.
    """

    model: ModelShape
    times: KernelTimes
    drafter: Drafter
    dtype: str | None = None
    tp: int = 1
    kv_dtype: str | None = None
    engine: EngineSteps = field(default_factory=EngineSteps)
    factors: tuple[TermFactor, ...] = ()
    lengths: DraftLengths | None = None

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise InputError(f"tp={self.tp}", hint="give the number of GPUs that share the model, 1 or more")
        for term, factor in self.factors:
            if not 0.0 < factor < np.inf:
                raise InputError(f"{term} counts {factor:g} times", hint="give a factor above 0")
        for dtype in (*self.formats, self.formats.wide):
            self.times.ridge_tokens(dtype)
        _ = self._tables  # shares out, or says why that cannot be

    @property
    def target(self) -> ForwardPass:
        """The target's kernels on one GPU of the group."""
        return self._tables.target

    @property
    def ridge_tokens(self) -> float:
        """Tokens per step at which streaming the weights takes as long as the arithmetic."""
        return self.times.ridge_tokens(self.formats.layers)

    @property
    def formats(self) -> WeightFormats:
        """The formats of the target's weights."""
        return self.model.formats(self.dtype)

    @property
    def cache_dtype(self) -> Dtype:
        """The format of its KV cache: as asked, else as the checkpoint says, else wide."""
        asked = self.kv_dtype or self.model.kv_dtype
        return self.formats.wide if asked is None else Dtype(asked)

    @property
    def memory_bytes(self) -> int:
        """Memory that the weights of target and drafter take on each GPU; KV caches come on top."""
        return self.target.network.weight_bytes(self.dtype) + round(self._tables.drafting.weight_bytes)

    def kv_bytes(self, context: int) -> int:
        """KV caches and states of one request per GPU, the drafter's included."""
        return round(self.target.cache_bytes(context) + self._tables.drafting.cache_bytes(context))

    def largest_batch(self, context: int, memory_bytes: float) -> int:
        """How many requests of `context` tokens a GPU's memory holds beside the weights; 0 for none."""
        return max(int((memory_bytes - self.memory_bytes) // max(self.kv_bytes(context), 1)), 0)

    @property
    def deepest(self) -> int | None:
        """The most tokens that the drafter guesses one behind the other; None without a limit."""
        return self._tables.drafting.deepest

    def drafting_s(self, *, batch: int, length: int, context: int) -> float:
        """Seconds of drafting a chain, what the engine takes per pass included."""
        depth = np.array([length], dtype=np.int64)
        terms = self.terms(batch=batch, nodes=length + 1, depth=length, widths=[1] * length, context=context)
        return terms.drafter_s + self.engine.draft_pass_s * int(self._tables.drafting.passes(depth)[0])

    def idle_s(self, *, batch: int, context: int) -> float:
        """Seconds that the drafter takes in a step that drafts nothing, to keep its cache; plain decoding has none."""
        B, L = np.array([batch], dtype=np.int64), np.array([context], dtype=np.int64)
        return float(np.sum(self._tables.drafting.idle_s(B, L)))

    def step_time_s(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: IntArray, context: IntLike
    ) -> FloatArray:
        """Seconds per step for every element of the broadcast inputs; see `StepCost`."""
        B, L = Axis.of(batch), Axis.of(context)
        total = np.zeros(np.broadcast_shapes(*map(np.shape, (batch, nodes, depth, context)), widths.shape[:-1]))
        target_s = self._tables.target_s(B.values, int(np.max(nodes, initial=1)), L.values, self.factors)
        total += target_s[B.at, np.asarray(nodes) - 1, L.at]
        for term, seconds in self._tree_terms(batch, nodes, depth, widths, context):
            total += scaled(term, seconds, self.factors)
        return total

    def terms(self, *, batch: int, nodes: int, depth: int, widths: Sequence[int], context: int) -> StepTerms:
        """One step in parts; the arguments are those of `step_time_s` at one point."""
        of_target = self._tables.of_target((batch,), nodes, (context,))
        found = {term: seconds[0, nodes - 1, 0] for term, seconds in of_target.items()}
        found |= dict(self._tree_terms(batch, nodes, depth, np.array(widths, dtype=np.int64), context))
        every = ((term, scaled(term, seconds, self.factors)) for term, seconds in found.items())
        return StepTerms(**{f"{term}_s": float(np.sum(seconds)) for term, seconds in every})

    def visits(self, batch: int, nodes: int) -> ExpertVisits | None:
        """Distinct experts that a layer is expected to visit in a step of B x N tokens; None without experts."""
        experts = self.model.experts
        if experts is None:
            return None
        independent = experts.independent(np.array(1.0 * batch), np.array(1.0 * batch * nodes))
        return ExpertVisits(float(experts.visited(independent)), experts.count)

    def cliff(self, tokens: int) -> str | None:
        """A sentence where a step of `tokens`, padded, is at a jump or spike of its measured GEMMs and experts."""
        return cliff(self._layers_s, int(self.engine.padded(np.array(float(tokens)))))

    def weights_s(self, tokens: FloatArray) -> FloatArray:
        """`[...]` seconds that the target's GEMMs, experts and logits take in steps of so many tokens, padded."""
        return self._layers_s(self.engine.padded(tokens))

    def _layers_s(self, tokens: FloatArray) -> FloatArray:
        target = self.target
        return target.layers_s(tokens) + target.experts_s(tokens) + target.lm_head_s(tokens)

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
        """Sentences on where steps of up to `batch`, `nodes` and `context` leave what was measured or meet a cliff."""
        tokens = int(self.engine.padded(np.array(float(batch * nodes))))
        reaches = list(self.target.reaches(tokens, requests=batch, queries=nodes, keys=context + nodes))
        of_engine = self.engine.notes(model=self.model.name, tokens=tokens)
        notes = (*of_engine, self.drafter.note, self._part_drafts(batch, nodes), self.cliff(tokens))
        found = [
            rough_prices(self.times, ((reach.family, reach.dtype) for reach in reaches)),
            *self._implausible(batch, context),
            *(self.times.beyond(*reach) for reach in reaches),
            self._routing(batch, nodes, context),
            *notes,
        ]
        return list(dict.fromkeys(sentence for sentence in found if sentence))

    def _part_drafts(self, batch: int, nodes: int) -> str | None:
        """What is verified on average where a request drafts in some steps only."""
        if self.lengths is None or nodes == 1:
            return None
        mean = float(self.lengths.verified(nodes) @ np.arange(1, nodes + 1))
        return (
            f"the drafter proposes something in {self.lengths.at_least[0]:.0%} of a request's steps: of up to {nodes} "
            f"tokens a request verifies {mean:.2f} on average; the price is the mean over such steps"
        )

    def _implausible(self, batch: int, context: int) -> Iterator[str]:
        """Sentences on prices that a served step is not expected to have."""
        kinds = [
            (Family.GEMM, self.formats.layers),
            *([(Family.EXPERTS, self.formats.experts)] if self.model.experts else []),
        ]
        for kind in kinds:
            if said := self.times.implausible(*kind):
                yield f"implausible: {said}"
        wide = str(self.formats.wide)
        if str(self.formats) != wide:
            own, other = (
                float(step.step_time_s(batch, 1, 0, np.zeros(1, dtype=np.int64), context))
                for step in (self, replace(self, dtype=wide))
            )
            if own > other:
                yield (
                    f"implausible: a plain step of batch {batch} takes {own * 1e3:.1f} ms in {self.formats} and "
                    f"{other * 1e3:.1f} ms in {wide}: the narrower format should not be slower"
                )

    def _routing(self, batch: int, nodes: int, context: int) -> str | None:
        """What is assumed of routing, and how the price of the draft changes over what it can be."""
        experts = self.model.experts
        if experts is None or nodes == 1:
            return None
        ends = []
        for skew, correlation in ((0.0, 0.0), (MOST_SKEW, MOST_CORRELATION)):
            model = replace(self.model, experts=replace(experts, skew=skew, correlation=correlation))
            of_target = replace(self, model=model)._tables.of_target((batch,), nodes, (context,))
            draft_s, plain_s = (sum(float(s[0, n - 1, 0]) for s in of_target.values()) for n in (nodes, 1))
            ends.append(draft_s / plain_s)
        ours, visited = self.visits(batch, nodes), experts.count
        assert ours is not None
        return (
            f"routing is taken with skew {experts.skew:g} and {experts.correlation:.0%} of a token's experts kept from "
            f"the one before: {ours.visited:.0f} of {visited} experts for {nodes} tokens at batch {batch}; from "
            f"balanced and independent to skew {MOST_SKEW:g} and {MOST_CORRELATION:.0%} the target's step is "
            f"{ends[0]:.2f} to {ends[1]:.2f} plain ones"
        )

    def _tree_terms(
        self, batch: IntLike, nodes: IntLike, depth: IntLike, widths: IntArray, context: IntLike
    ) -> Iterator[tuple[Term, FloatArray]]:
        """`[...]` seconds of the terms that the tree's shape changes."""
        B, N, D, L = (np.asarray(value, dtype=np.int64) for value in (batch, nodes, depth, context))
        tables, batches = self._tables, Axis.of(B)
        yield Term.DRAFTER, tables.drafting.time_s(B, D, widths, L)
        compaction_s = tables.of_compaction(batches.values, int(D.max(initial=0)))
        # The accepted tokens of a chain already stand where they belong.
        yield Term.COMPACTION, compaction_s[batches.at, D] * (N != D + 1)
        passes = tables.drafting.passes(D)
        if self.lengths is None:
            yield Term.ENGINE, self.engine.time_s(B, N, passes=passes)
        else:
            engine_s = tables.of_engine(batches.values, int(N.max(initial=1)))
            yield Term.ENGINE, engine_s[batches.at, N - 1] + self.engine.draft_pass_s * passes

    def _p90(self, term: Term) -> float | None:
        if term is Term.ENGINE:
            return self.engine.evidence.p90 if self.engine.evidence else None
        family = term.family
        if family is Family.ATTENTION and not isinstance(self.model.attention, GroupedAttention):
            family = Family.LATENT
        families = self._tables.drafting.families if term is Term.DRAFTER else (family,)
        errors = (of and self.times.error(of, self._dtype_of(term, of)) for of in families)
        return max((error.p90 for error in errors if error), default=None)

    def _dtype_of(self, term: Term, family: Family) -> Dtype:
        if family in (Family.ATTENTION, Family.LATENT):
            return self.cache_dtype
        if family is Family.EXPERTS:
            return self.formats.experts
        return self.formats.wide if term is Term.LM_HEAD else self.formats.layers

    @property
    def _tables(self) -> StepTables:
        priced = (self.model, self.times, self.drafter, self.formats, self.cache_dtype, self.tp)
        return tables_of(*priced, self.engine, self.lengths)
