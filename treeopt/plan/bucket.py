"""One bucket of a plan: its tree, the numbers behind it, and the same as the value of a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from treeopt.arrays import FloatArray
from treeopt.draft_family import Draft, DynamicTree
from treeopt.solve.result import Category
from treeopt.solve.time_limit import TimePerToken
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number with its 95 % interval; no interval where the evidence allows none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A tree that was not chosen, with what it would give; `loss` is its share below the choice (below 0: above)."""

    nodes: int
    depth: int
    expected_tokens: float
    tokens_per_s: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class TermSensitivity:
    """One term of the step time, in the step of the choice and in a plain one, and what its error would change.

    `error_p90` is the 90th percentile of the term's measured error as a share, None where it was not measured.
    `flip_...` is the factor on the term at which that rival is as fast as the choice; None where no factor above 0 is,
    where the rival is the choice itself, or where it already is as fast. `regret` is the share of tokens/s that the
    choice loses more than now against the best tree if the term is off by that error, the worse of both directions.
    """

    name: str
    step_s: float
    plain_s: float
    error_p90: float | None = None
    flip_runner_up: float | None = None
    flip_best_chain: float | None = None
    flip_plain: float | None = None
    regret: float | None = None


@dataclass(frozen=True, kw_only=True)
class Misjudged:
    """The error of one term that costs most: if it took `factor` times as long, `nodes` would be the best choice."""

    term: str
    factor: float
    regret: float
    nodes: int


@dataclass(frozen=True, kw_only=True)
class CostSensitivity:
    """Which terms make the step, and which errors of them matter, at the bucket's largest batch and context.

    `largest_term` takes most of the step, `growing_term` grows most over plain decoding (None for plain decoding);
    `worst` is None where no error was measured or none changes the answer.
    """

    largest_term: str
    growing_term: str | None
    terms: tuple[TermSensitivity, ...]
    worst: Misjudged | None = None


@dataclass(frozen=True, kw_only=True)
class EngineLoss:
    """What an engine's limits cost: the share of the objective lost at the bucket's largest batch, against the plan
    without them, whose draft there is `unrestricted` (its loss is below 0 where it is better), and the largest share
    at any listed batch size of the bucket.
    """

    share: Estimate
    unrestricted: Alternative
    worst_share: float
    worst_batch: int


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The answer for the batch sizes `batch_min`..`batch_max` and a range of contexts, priced at the largest of both.

    `path_probabilities [N]` is f of every node; `held_out_tokens` is E on documents that took no part in the search;
    `break_even_tokens` is the E that the step must exceed to pay, `ridge_batch` the largest batch whose B x N stays
    under the ridge; `time_per_token` is what a request waits (None in files of older versions), `meets_limit` whether
    that is within the plan's limits (None without limits); `resolvable` is the smallest share of tokens/s to the
    runner-up that the documents can tell; `optimality` is "exact" or names the gap to an upper bound. Of a dynamic
    tree, `dynamic`, `tree` is the one that it builds on average confidence: its f may sum to another E. `engine_loss`
    is None in plans that were not made for an engine.
    """

    batch_min: int
    batch_max: int
    context_min: int
    context_max: int
    tree: DraftTree
    path_probabilities: FloatArray
    expected_tokens: Estimate
    held_out_tokens: Estimate | None
    step_time_s: float
    time_per_token: TimePerToken | None
    meets_limit: bool | None
    tokens_per_s: float
    speedup: Estimate
    speedup_at_min: float
    break_even_tokens: float
    ridge_batch: int
    best_chain: Alternative
    plain_tokens_per_s: float
    runner_up: Alternative | None
    sharing_loss: float
    resolvable: float | None
    categories: tuple[Category, ...]
    cost_sensitivity: CostSensitivity | None
    optimality: str
    reason: str
    dynamic: DynamicTree | None = None
    engine_loss: EngineLoss | None = None

    @property
    def draft(self) -> Draft:
        """What is drafted: the dynamic tree where there is one."""
        return self.tree if self.dynamic is None else self.dynamic

    @property
    def batches(self) -> str:
        """The batch sizes in words: `4` or `5-8`."""
        return str(self.batch_max) if self.batch_min == self.batch_max else f"{self.batch_min}-{self.batch_max}"

    @property
    def speculate(self) -> bool:
        """False where plain decoding is the answer."""
        return len(self.tree) > 1

    @property
    def tokens_per_step(self) -> int:
        """B x N."""
        return self.batch_max * len(self.tree)

    def document(self) -> dict[str, Any]:
        """The bucket as the value of a file, keys in their stable order."""
        tree, dynamic, runner_up, held_out = self.tree, self.dynamic, self.runner_up, self.held_out_tokens
        time, sensitivity, engine_loss = self.time_per_token, self.cost_sensitivity, self.engine_loss
        return {
            "batch": {"min": self.batch_min, "max": self.batch_max},
            "context": {"min": self.context_min, "max": self.context_max},
            "speculate": self.speculate,
            "nodes": len(tree),
            "depth": tree.depth,
            "paths": [list(p) for p in tree.paths],
            "parents": tree.parents.tolist(),
            "dynamic": None if dynamic is None else dict(zip(("steps", "topk", "nodes"), dynamic, strict=True)),
            "path_probabilities": [_round(f) for f in self.path_probabilities],
            "expected_tokens": _rounded(self.expected_tokens),
            "held_out_tokens": None if held_out is None else _rounded(held_out),
            "step_time_s": _round(self.step_time_s),
            "time_per_token_s": None if time is None else _time_document(time),
            "meets_limit": self.meets_limit,
            "tokens_per_s": _round(self.tokens_per_s),
            "speedup": _rounded(self.speedup),
            "speedup_at_min": _round(self.speedup_at_min),
            "break_even_tokens": _round(self.break_even_tokens),
            "ridge_batch": self.ridge_batch,
            "tokens_per_step": self.tokens_per_step,
            "best_chain": _rounded(self.best_chain),
            "plain": {"tokens_per_s": _round(self.plain_tokens_per_s)},
            "runner_up": None if runner_up is None else _rounded(runner_up),
            "sharing_loss": _round(self.sharing_loss),
            "resolvable": None if self.resolvable is None else _round(self.resolvable),
            "categories": [_rounded(c) for c in self.categories],
            "cost_sensitivity": None if sensitivity is None else sensitivity_document(sensitivity),
            "engine_loss": None if engine_loss is None else _loss_document(engine_loss),
            "optimality": self.optimality,
            "reason": self.reason,
        }


def _time_document(time: TimePerToken) -> dict[str, float | None]:
    documents = None if time.documents_p99_s is None else _round(time.documents_p99_s)
    return {"mean": _round(time.mean_s), "p99": _round(time.p99_s), "documents_p99": documents}


def _loss_document(loss: EngineLoss) -> dict[str, Any]:
    return {
        "share": _rounded(loss.share),
        "unrestricted": _rounded(loss.unrestricted),
        "worst": {"batch": loss.worst_batch, "share": _round(loss.worst_share)},
    }


def sensitivity_document(sensitivity: CostSensitivity) -> dict[str, Any]:
    """The sensitivity as the value of a file, keys in their stable order."""
    return {
        "largest_term": sensitivity.largest_term,
        "growing_term": sensitivity.growing_term,
        "worst": None if sensitivity.worst is None else _rounded(sensitivity.worst),
        "terms": [_rounded(term) for term in sensitivity.terms],
    }


def _rounded(value: Estimate | Alternative | Category | TermSensitivity | Misjudged) -> dict[str, Any]:
    return {key: _round(x) if isinstance(x, float) else x for key, x in asdict(value).items()}


def _round(value: float) -> float:
    """Six significant digits: more than any measurement has, and the same on every machine."""
    return float(f"{value:.6g}")
