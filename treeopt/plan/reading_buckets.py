"""The buckets of plan files, read and checked: every error names the file and the line."""

from __future__ import annotations

from typing import Final

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.draft_family import DynamicTree
from treeopt.errors import TreeError
from treeopt.files.documents import Field
from treeopt.plan.bucket import (
    Alternative,
    Bucket,
    CostSensitivity,
    EngineLoss,
    Estimate,
    Misjudged,
    TermSensitivity,
)
from treeopt.solve.result import Category
from treeopt.solve.time_limit import TimePerToken
from treeopt.tree import DraftTree

_BUCKET_KEYS: Final = (
    *("batch", "context", "time_per_token_s", "meets_limit", "cost_sensitivity"),
    *("speculate", "nodes", "depth", "paths", "parents", "path_probabilities", "expected_tokens"),
    *("held_out_tokens", "step_time_s", "tokens_per_s", "speedup", "speedup_at_min", "break_even_tokens"),
    *("ridge_batch", "tokens_per_step", "best_chain", "plain", "runner_up", "sharing_loss", "resolvable", "categories"),
    *("optimality", "reason", "dynamic", "engine_loss"),
)
_TINY: Final = 1e-300  # a rate or a time is positive


def paths_at(field: Field) -> DraftTree:
    """The static tree whose rank paths stand in a field.

    Raises:
        FileFormatError: not a list of lists of ranks, or no tree (with the line).
    """
    paths = [tuple(rank.integer() for rank in path.items()) for path in field.items()]
    try:
        return DraftTree(tuple(paths))
    except TreeError as error:
        raise field.error(str(error), hint=error.hint) from None


def parse_bucket(field: Field, context: int) -> Bucket:
    """Read one bucket; `context` is that of a plan of before there were several.

    Raises:
        FileFormatError: it contradicts itself (with the line).
    """
    field.only(*_BUCKET_KEYS)
    batch = field.get("batch")
    low = batch.get("min").integer(low=1)
    contexts = field.get("context", {"min": context, "max": context})
    shortest = contexts.get("min").integer(low=0)
    time, meets = field.get("time_per_token_s", None), field.get("meets_limit", None)
    tree = paths_at(field.get("paths"))
    for key, value in (("nodes", len(tree)), ("depth", tree.depth)):
        if field.get(key).integer() != value:
            raise field.get(key).error(f"the paths have {value}", hint="change the paths and this number together")
    if [p.integer() for p in field.get("parents").items()] != tree.parents.tolist():
        raise field.get("parents").error("these are not the parents of the paths", hint="nodes go by (depth, path)")
    runner_up, held_out = field.get("runner_up"), field.get("held_out_tokens")
    f = np.array([p.number(low=0, high=1) for p in field.get("path_probabilities").items()])
    tokens, dynamic, lost = (
        _parse_estimate(field.get("expected_tokens")),
        parse_triple(field.get("dynamic", None)),
        field.get("engine_loss", None),
    )
    _check_probabilities(field, tree, f, float(f.sum()) if dynamic else tokens.value)
    return Bucket(
        batch_min=low,
        batch_max=batch.get("max").integer(low=low),
        context_min=shortest,
        context_max=contexts.get("max").integer(low=shortest),
        tree=tree,
        path_probabilities=f,
        expected_tokens=tokens,
        held_out_tokens=None if held_out.value is None else _parse_estimate(held_out),
        step_time_s=field.get("step_time_s").number(low=_TINY),
        time_per_token=None if time.value is None else _parse_time(time),
        meets_limit=None if meets.value is None else meets.boolean(),
        tokens_per_s=field.get("tokens_per_s").number(low=_TINY),
        speedup=_parse_estimate(field.get("speedup")),
        speedup_at_min=field.get("speedup_at_min").number(low=0),
        break_even_tokens=field.get("break_even_tokens").number(low=0),
        ridge_batch=field.get("ridge_batch").integer(low=0),
        best_chain=_parse_alternative(field.get("best_chain")),
        plain_tokens_per_s=field.get("plain").get("tokens_per_s").number(low=_TINY),
        runner_up=None if runner_up.value is None else _parse_alternative(runner_up),
        sharing_loss=field.get("sharing_loss").number(),
        resolvable=number_or_none(field.get("resolvable")),
        categories=tuple(_parse_category(c) for c in field.get("categories").items()),
        cost_sensitivity=_parse_sensitivity(field.get("cost_sensitivity", None)),
        optimality=field.get("optimality").text(),
        reason=field.get("reason").text(),
        dynamic=dynamic,
        engine_loss=None if lost.value is None else _parse_loss(lost),
    )


def parse_triple(field: Field) -> DynamicTree | None:
    """The dynamic tree `{steps, topk, nodes}` of a field, None for null.

    Raises:
        FileFormatError: a key too many or too few, or a number out of range (with the line).
    """
    if field.value is None:
        return None
    field.only("steps", "topk", "nodes")
    return DynamicTree(
        field.get("steps").integer(low=1), field.get("topk").integer(low=1), field.get("nodes").integer(low=2)
    )


def _parse_loss(field: Field) -> EngineLoss:
    field.only("share", "unrestricted", "worst")
    worst = field.get("worst")
    return EngineLoss(
        share=_parse_estimate(field.get("share")),
        unrestricted=_parse_alternative(field.get("unrestricted")),
        worst_share=worst.get("share").number(),
        worst_batch=worst.get("batch").integer(low=1),
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


def _parse_time(field: Field) -> TimePerToken:
    field.only("mean", "p99", "documents_p99")
    return TimePerToken(
        mean_s=field.get("mean").number(low=_TINY),
        p99_s=field.get("p99").number(low=_TINY),
        documents_p99_s=number_or_none(field.get("documents_p99", None)),
    )


def _parse_sensitivity(field: Field) -> CostSensitivity | None:
    if field.value is None:
        return None
    field.only("largest_term", "growing_term", "worst", "terms")
    growing, worst = field.get("growing_term"), field.get("worst")
    return CostSensitivity(
        largest_term=field.get("largest_term").text(),
        growing_term=None if growing.value is None else growing.text(),
        terms=tuple(_parse_term(term) for term in field.get("terms").items()),
        worst=None if worst.value is None else _parse_misjudged(worst),
    )


def _parse_term(field: Field) -> TermSensitivity:
    return TermSensitivity(
        name=field.get("name").text(),
        step_s=field.get("step_s").number(low=0),
        plain_s=field.get("plain_s").number(low=0),
        error_p90=number_or_none(field.get("error_p90")),
        flip_runner_up=number_or_none(field.get("flip_runner_up")),
        flip_best_chain=number_or_none(field.get("flip_best_chain")),
        flip_plain=number_or_none(field.get("flip_plain")),
        regret=number_or_none(field.get("regret")),
    )


def _parse_misjudged(field: Field) -> Misjudged:
    return Misjudged(
        term=field.get("term").text(),
        factor=field.get("factor").number(low=0),
        regret=field.get("regret").number(low=0, high=1),
        nodes=field.get("nodes").integer(low=1),
    )


def number_or_none(field: Field) -> float | None:
    """A number from 0 on, or null."""
    return None if field.value is None else field.number(low=0)
