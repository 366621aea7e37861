"""The plan: one tree per bucket of batch sizes, with its evidence, as a file that programs load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from treeopt.documents import Document, Field, dump_yaml, read_document, write_atomically
from treeopt.errors import InputError, TreeError
from treeopt.ranks.model import FloatArray
from treeopt.tree import DraftTree

FORMAT: Final = "treeopt.plan/1"
TREE_FORMAT: Final = "treeopt.tree/1"
EXACT_RULES: Final = ("greedy", "target-sample", "recursive-rejection")
APPROXIMATE_RULES: Final = ("typical",)
_PLAN_KEYS: Final = (
    *("format", "created_with", "verification", "ranks", "hardware", "model", "drafter", "context", "objective"),
    *("notes", "buckets"),
)
_BUCKET_KEYS: Final = (
    *("batch", "speculate", "nodes", "depth", "paths", "parents", "path_probabilities", "expected_tokens"),
    *("held_out_tokens", "step_time_s", "tokens_per_s", "speedup", "speedup_at_min", "break_even_tokens"),
    *("ridge_batch", "tokens_per_step", "best_chain", "plain", "runner_up", "sharing_loss", "resolvable", "categories"),
    *("optimality", "reason"),
)
_TINY: Final = 1e-300  # a rate or a time is positive


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


def load_plan(path: str | Path) -> Plan:
    """Read a plan.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no plan of this version, or contradicts itself (with the line).
    """
    return parse_plan(read_document(Path(path), what="plan"))


def parse_plan(document: Document) -> Plan:
    """Read a plan from a parsed file."""
    root = document.root
    check_format(root, FORMAT, what="plan")
    root.only(*_PLAN_KEYS)
    created, rule = root.get("created_with"), root.get("verification").get("rule")
    if rule.text() not in (*EXACT_RULES, *APPROXIMATE_RULES):
        raise rule.error(
            f"unknown rule '{rule.text()}'", hint=f"known: {', '.join((*EXACT_RULES, *APPROXIMATE_RULES))}"
        )
    buckets = tuple(_parse_bucket(b) for b in root.get("buckets").items())
    if not buckets:
        raise root.get("buckets").error("the plan has no bucket", hint="search again")
    for i, (before, after) in enumerate(pairwise(buckets), start=1):
        if after.batch_min != before.batch_max + 1:
            field = list(root.get("buckets").items())[i].get("batch")
            raise field.error(
                f"the bucket before ends at {before.batch_max}", hint="buckets follow each other without gaps"
            )
    return Plan(
        version=created.get("treeopt").text(),
        command=created.get("command").text(),
        rule=rule.text(),
        notes=tuple(note.text() for note in root.get("notes").items()),
        ranks=_parse_source(root.get("ranks")),
        hardware=_parse_source(root.get("hardware")),
        model=_parse_source(root.get("model")),
        drafter=root.get("drafter").get("kind").text(),
        context=root.get("context").integer(low=0),
        objective=root.get("objective").text(),
        buckets=buckets,
    )


def parse_tree(document: Document) -> DraftTree:
    """Read a bare tree: `format: treeopt.tree/1` with `paths`, or a plain list of paths as Medusa and EAGLE hold it.

    Raises:
        FileFormatError: it is neither, or not a tree (with the line).
    """
    root = document.root
    if isinstance(root.value, list):
        return _paths(root)
    check_format(root, TREE_FORMAT, what="tree")
    return _paths(root.get("paths"))


def check_format(root: Field, expected: str, *, what: str) -> None:
    """Refuse a file of another format or schema version.

    Raises:
        FileFormatError: with what was found.
    """
    if not isinstance(root.value, dict) or "format" not in root.value:
        raise root.error(f"this is not a {what}", hint=f"a {what} starts with `format: {expected}`")
    field = root.get("format")
    found = field.text()
    if found == expected:
        return
    same_kind = found.split("/")[0] == expected.split("/")[0]
    hint = f"this treeopt reads {expected}; " + ("make it again" if same_kind else f"give a {what}")
    raise field.error(f"this is '{found}', expected '{expected}'", hint=hint)


def _paths(field: Field) -> DraftTree:
    paths = [tuple(rank.integer() for rank in path.items()) for path in field.items()]
    try:
        return DraftTree(tuple(paths))
    except TreeError as error:
        raise field.error(str(error), hint=error.hint) from None


def _source_document(source: Source) -> dict[str, Any]:
    given = {} if source.reference == source.name else {"file": source.reference}
    return {"name": source.name, **given, "sha256": source.sha256, **dict(source.facts)}


def _parse_source(field: Field) -> Source:
    mapping = field.mapping()
    name = field.get("name").text()
    facts = tuple((k, v) for k, v in mapping.items() if k not in ("name", "file", "sha256"))
    return Source(name=name, reference=field.get("file", name).text(), sha256=field.get("sha256").text(), facts=facts)


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


def _parse_bucket(field: Field) -> Bucket:
    field.only(*_BUCKET_KEYS)
    batch = field.get("batch")
    low = batch.get("min").integer(low=1)
    tree = _paths(field.get("paths"))
    for key, value in (("nodes", len(tree)), ("depth", tree.depth)):
        if field.get(key).integer() != value:
            raise field.get(key).error(f"the paths have {value}", hint="change the paths and this number together")
    if [p.integer() for p in field.get("parents").items()] != tree.parents.tolist():
        raise field.get("parents").error("these are not the parents of the paths", hint="nodes go by (depth, path)")
    runner_up, held_out = field.get("runner_up"), field.get("held_out_tokens")
    f = np.array([p.number(low=0, high=1) for p in field.get("path_probabilities").items()])
    tokens = _parse_estimate(field.get("expected_tokens"))
    _check_probabilities(field, tree, f, tokens.value)
    return Bucket(
        batch_min=low,
        batch_max=batch.get("max").integer(low=low),
        tree=tree,
        path_probabilities=f,
        expected_tokens=tokens,
        held_out_tokens=None if held_out.value is None else _parse_estimate(held_out),
        step_time_s=field.get("step_time_s").number(low=_TINY),
        tokens_per_s=field.get("tokens_per_s").number(low=_TINY),
        speedup=_parse_estimate(field.get("speedup")),
        speedup_at_min=field.get("speedup_at_min").number(low=0),
        break_even_tokens=field.get("break_even_tokens").number(low=0),
        ridge_batch=field.get("ridge_batch").integer(low=0),
        best_chain=_parse_alternative(field.get("best_chain")),
        plain_tokens_per_s=field.get("plain").get("tokens_per_s").number(low=_TINY),
        runner_up=None if runner_up.value is None else _parse_alternative(runner_up),
        sharing_loss=field.get("sharing_loss").number(),
        resolvable=None if (r := field.get("resolvable")).value is None else r.number(low=0),
        categories=tuple(_parse_category(c) for c in field.get("categories").items()),
        optimality=field.get("optimality").text(),
        reason=field.get("reason").text(),
    )


def _check_probabilities(field: Field, tree: DraftTree, f: FloatArray, tokens: float) -> None:
    """f of the root is 1, f never rises along a path, and E is their sum."""
    given = field.get("path_probabilities")
    if len(f) != len(tree):
        raise given.error(f"{len(f)} values for {len(tree)} nodes", hint="give one per node")
    above = np.concatenate([[1.0], f[tree.parents[1:]]])
    wrong = np.flatnonzero(f > above + 1e-9)
    if len(wrong) or f[0] != 1.0:
        node = int(wrong[0]) if len(wrong) else 0
        raise given.error(f"f of node {node} is {f[node]:g}", hint="the root has 1, and f never rises along a path")
    if abs(f.sum() - tokens) > 1e-3 * tokens:
        raise field.get("expected_tokens").error(
            f"E is {tokens:g}, the path probabilities sum to {f.sum():g}", hint="E is 1 + the sum of f over the drafts"
        )
    if field.get("speculate").boolean() != (len(tree) > 1):
        raise field.get("speculate").error(
            f"the tree has {len(tree)} nodes", hint="a plan speculates where it has a tree"
        )


def _estimate_document(estimate: Estimate) -> dict[str, float | None]:
    low = None if estimate.low is None else _round(estimate.low)
    high = None if estimate.high is None else _round(estimate.high)
    return {"value": _round(estimate.value), "low": low, "high": high}


def _parse_estimate(field: Field) -> Estimate:
    low, high = field.get("low"), field.get("high")
    return Estimate(
        value=field.get("value").number(),
        low=None if low.value is None else low.number(),
        high=None if high.value is None else high.number(),
    )


def _alternative_document(option: Alternative) -> dict[str, float]:
    return {
        "nodes": option.nodes,
        "depth": option.depth,
        "expected_tokens": _round(option.expected_tokens),
        "tokens_per_s": _round(option.tokens_per_s),
        "loss": _round(option.loss),
    }


def _parse_alternative(field: Field) -> Alternative:
    return Alternative(
        nodes=field.get("nodes").integer(low=1),
        depth=field.get("depth").integer(low=0),
        expected_tokens=field.get("expected_tokens").number(low=0),
        tokens_per_s=field.get("tokens_per_s").number(low=_TINY),
        loss=field.get("loss").number(),
    )


def _category_document(category: Category) -> dict[str, Any]:
    return {
        "name": category.name,
        "weight": _round(category.weight),
        "expected_tokens": _round(category.expected_tokens),
        "loss": _round(category.loss),
    }


def _parse_category(field: Field) -> Category:
    return Category(
        name=field.get("name").text(),
        weight=field.get("weight").number(low=0, high=1),
        expected_tokens=field.get("expected_tokens").number(low=0),
        loss=field.get("loss").number(low=0, high=1),
    )


def _round(value: float) -> float:
    """Six significant digits: more than any measurement has, and the same on every machine."""
    return float(f"{value:.6g}")
