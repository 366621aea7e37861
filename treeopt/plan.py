"""The plan: one tree per bucket of batch sizes, with its evidence, as a file that programs load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from treeopt.documents import dump_yaml, write_atomically
from treeopt.errors import InputError
from treeopt.ranks.model import FloatArray
from treeopt.tree import DraftTree

FORMAT: Final = "treeopt.plan/1"
EXACT_RULES: Final = ("greedy", "target-sample", "recursive-rejection")
APPROXIMATE_RULES: Final = ("typical",)


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
class Category:
    """What a bucket's tree does for one kind of traffic: its E, and the share it loses against its own best tree."""

    name: str
    weight: float
    expected_tokens: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The answer for the batch sizes `batch_min`..`batch_max`, priced at the largest.

    `path_probabilities [N]` is f of every node; `held_out_tokens` is E on documents that took no part in the search;
    `break_even_tokens` is the E that the step must exceed to pay, `ridge_batch` the largest batch whose B x N stays
    under the ridge; `resolvable` is the smallest share of tokens/s to the runner-up that the documents can tell;
    `optimality` is "exact" or names the gap to an upper bound.
    """

    batch_min: int
    batch_max: int
    tree: DraftTree
    path_probabilities: FloatArray
    expected_tokens: Estimate
    held_out_tokens: Estimate | None
    step_time_s: float
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
    optimality: str
    reason: str

    @property
    def speculate(self) -> bool:
        """False where plain decoding is the answer."""
        return len(self.tree) > 1

    @property
    def tokens_per_step(self) -> int:
        """B x N."""
        return self.batch_max * len(self.tree)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A profile that the plan was made from: `reference` is the shipped name or the file as it was given."""

    name: str
    reference: str
    sha256: str
    facts: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Trees for batch sizes, and everything needed to check or repeat the search."""

    version: str
    command: str
    rule: str
    notes: tuple[str, ...]
    ranks: Source
    hardware: Source
    model: Source
    drafter: str
    context: int
    objective: str
    buckets: tuple[Bucket, ...]

    def bucket_for(self, batch: int) -> Bucket:
        """The bucket that a batch size falls into.

        Raises:
            InputError: the plan was not made for that batch size.
        """
        for bucket in self.buckets:
            if bucket.batch_min <= batch <= bucket.batch_max:
                return bucket
        ranges = ", ".join(f"{b.batch_min}-{b.batch_max}" for b in self.buckets)
        raise InputError(
            f"the plan has no batch {batch}", hint=f"it covers {ranges}; search again with that batch size"
        )

    def tree_for(self, batch: int) -> DraftTree:
        """The tree to verify at a batch size; the empty tree means plain decoding.

        Raises:
            InputError: the plan was not made for that batch size.
        """
        return self.bucket_for(batch).tree

    def document(self) -> dict[str, Any]:
        """The plan as the value of its file, keys in their stable order."""
        return {
            "format": FORMAT,
            "created_with": {"treeopt": self.version, "command": self.command},
            "verification": {"rule": self.rule, "exact": self.rule in EXACT_RULES},
            "ranks": _source_document(self.ranks),
            "hardware": _source_document(self.hardware),
            "model": _source_document(self.model),
            "drafter": {"kind": self.drafter},
            "context": self.context,
            "objective": self.objective,
            "notes": list(self.notes),
            "buckets": [_bucket_document(b) for b in self.buckets],
        }

    def yaml(self) -> str:
        """The plan's file."""
        return dump_yaml(self.document())

    def json(self) -> str:
        """The same document as JSON."""
        return json.dumps(self.document(), indent=2)

    def save(self, path: Path) -> None:
        """Write the file atomically.

        Raises:
            InputError: it cannot be written; an existing file is untouched.
        """
        write_atomically(path, self.yaml(), what="plan")


def _source_document(source: Source) -> dict[str, Any]:
    given = {} if source.reference == source.name else {"file": source.reference}
    return {"name": source.name, **given, "sha256": source.sha256, **dict(source.facts)}


def _bucket_document(bucket: Bucket) -> dict[str, Any]:
    tree = bucket.tree
    return {
        "batch": {"min": bucket.batch_min, "max": bucket.batch_max},
        "speculate": bucket.speculate,
        "nodes": len(tree),
        "depth": tree.depth,
        "paths": [list(p) for p in tree.paths],
        "parents": tree.parents.tolist(),
        "path_probabilities": [_round(f) for f in bucket.path_probabilities],
        "expected_tokens": _estimate_document(bucket.expected_tokens),
        "held_out_tokens": None if bucket.held_out_tokens is None else _estimate_document(bucket.held_out_tokens),
        "step_time_s": _round(bucket.step_time_s),
        "tokens_per_s": _round(bucket.tokens_per_s),
        "speedup": _estimate_document(bucket.speedup),
        "speedup_at_min": _round(bucket.speedup_at_min),
        "break_even_tokens": _round(bucket.break_even_tokens),
        "ridge_batch": bucket.ridge_batch,
        "tokens_per_step": bucket.tokens_per_step,
        "best_chain": _alternative_document(bucket.best_chain),
        "plain": {"tokens_per_s": _round(bucket.plain_tokens_per_s)},
        "runner_up": None if bucket.runner_up is None else _alternative_document(bucket.runner_up),
        "sharing_loss": _round(bucket.sharing_loss),
        "resolvable": None if bucket.resolvable is None else _round(bucket.resolvable),
        "categories": [_category_document(c) for c in bucket.categories],
        "optimality": bucket.optimality,
        "reason": bucket.reason,
    }


def _estimate_document(estimate: Estimate) -> dict[str, float | None]:
    low = None if estimate.low is None else _round(estimate.low)
    high = None if estimate.high is None else _round(estimate.high)
    return {"value": _round(estimate.value), "low": low, "high": high}


def _alternative_document(option: Alternative) -> dict[str, float]:
    return {
        "nodes": option.nodes,
        "depth": option.depth,
        "expected_tokens": _round(option.expected_tokens),
        "tokens_per_s": _round(option.tokens_per_s),
        "loss": _round(option.loss),
    }


def _category_document(category: Category) -> dict[str, Any]:
    return {
        "name": category.name,
        "weight": _round(category.weight),
        "expected_tokens": _round(category.expected_tokens),
        "loss": _round(category.loss),
    }


def _round(value: float) -> float:
    """Six significant digits: more than any measurement has, and the same on every machine."""
    return float(f"{value:.6g}")
