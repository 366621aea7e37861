"""Plan and tree files, read and checked: every error names the file and the line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from treeopt.documents import Document, Field, read_document
from treeopt.errors import TreeError
from treeopt.plan import (
    APPROXIMATE_RULES,
    EXACT_RULES,
    FORMAT,
    Alternative,
    Bucket,
    Category,
    Estimate,
    Plan,
    Source,
)
from treeopt.ranks.model import FloatArray
from treeopt.tree import DraftTree

TREE_FORMAT: Final = "treeopt.tree/1"
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


def load_plan(path: str | Path) -> Plan:
    """Read a plan.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no plan of this version, or contradicts itself (with the line).
    """
    return parse_plan(read_document(Path(path), what="plan"))


def is_plan(document: Document) -> bool:
    """Whether a file means to be a plan, where a bare tree would do too."""
    return isinstance(document.value, dict) and "buckets" in document.value


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


def _parse_source(field: Field) -> Source:
    mapping = field.mapping()
    name = field.get("name").text()
    facts = tuple((k, v) for k, v in mapping.items() if k not in ("name", "file", "sha256"))
    return Source(name=name, reference=field.get("file", name).text(), sha256=field.get("sha256").text(), facts=facts)


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


def _parse_estimate(field: Field) -> Estimate:
    low, high = field.get("low"), field.get("high")
    return Estimate(
        value=field.get("value").number(),
        low=None if low.value is None else low.number(),
        high=None if high.value is None else high.number(),
    )


def _parse_alternative(field: Field) -> Alternative:
    return Alternative(
        nodes=field.get("nodes").integer(low=1),
        depth=field.get("depth").integer(low=0),
        expected_tokens=field.get("expected_tokens").number(low=0),
        tokens_per_s=field.get("tokens_per_s").number(low=_TINY),
        loss=field.get("loss").number(),
    )


def _parse_category(field: Field) -> Category:
    return Category(
        name=field.get("name").text(),
        weight=field.get("weight").number(low=0, high=1),
        expected_tokens=field.get("expected_tokens").number(low=0),
        loss=field.get("loss").number(low=0, high=1),
    )
