"""Plan and tree files, read and checked: every error names the file and the line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from treeopt.acceptance.rules import read_rule
from treeopt.files.documents import Document, Field, read_document
from treeopt.files.typed import check_format, read, tree_at
from treeopt.plan.plan import FORMAT, Plan
from treeopt.plan.version_1 import FORMAT_1, plan_of_version_1
from treeopt.solve.bucket import Bucket
from treeopt.tree import DraftTree

TREE_FORMAT: Final = "treeopt.tree/1"
_TOGETHER: Final = "the plan was changed: change what belongs together, or search again"


def load_plan(path: str | Path) -> Plan:
    """Read a plan; its sources are found from its own folder.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no plan of a known version, or contradicts itself (with the line).
    """
    return parse_plan(read_document(Path(path), what="plan"))


def is_plan(document: Document) -> bool:
    """Whether a file means to be a plan, where a bare tree would do too."""
    return isinstance(document.value, dict) and "buckets" in document.value


def parse_plan(document: Document) -> Plan:
    """Read a plan from a parsed file (see `load_plan`)."""
    root = document.root
    version = check_format(root, FORMAT, FORMAT_1, what="plan")
    read_rule(root.get("verification").get("rule"))
    plan = plan_of_version_1(root) if version == FORMAT_1 else read(Plan, root)
    fields = list(root.get("buckets").items())
    if not fields:
        raise root.get("buckets").error("the plan has no bucket", hint="search again")
    for field, bucket in zip(fields, plan.buckets, strict=True):
        _check_numbers(field, bucket)
    _check_order(fields, plan.buckets)
    return replace(plan, sources=plan.sources.found_from(Path(document.name).parent))


def parse_tree(document: Document) -> DraftTree:
    """Read a bare tree: `format: treeopt.tree/1` with `paths`, or a plain list of paths as Medusa and EAGLE hold it.

    Raises:
        FileFormatError: it is neither, or not a tree (with the line).
    """
    root = document.root
    if isinstance(root.value, list):
        return tree_at(root)
    check_format(root, TREE_FORMAT, what="tree")
    return tree_at(root.get("paths"))


def _check_numbers(field: Field, bucket: Bucket) -> None:
    """Refuse a bucket whose numbers contradict each other: what is trusted must agree."""
    for keys, wrong in bucket.contradictions():
        at = field
        for key in keys:
            at = _beside(at, key)
        raise at.error(wrong, hint=_TOGETHER)


def _beside(field: Field, key: str) -> Field:
    """The field under a key, in its group, or under its name in version 1; the whole where it has none."""
    value: dict[str, Any] = field.mapping() if isinstance(field.value, dict) else {}
    for name in (key, _NAMES_1.get(key, key)):
        if name in value:
            return field.get(name)
    evidence = value.get("evidence")
    return field.get("evidence").get(key) if isinstance(evidence, dict) and key in evidence else field


_NAMES_1: Final = {"acceptance_length": "expected_tokens", "break_even_length": "break_even_tokens"}


def _check_order(fields: Sequence[Field], buckets: Sequence[Bucket]) -> None:
    """Buckets go by context, then by batch, without gaps, and all contexts have the same batch sizes."""
    for field, before, after in zip(fields[1:], buckets, buckets[1:], strict=False):
        if after.context == before.context and after.batch.min != before.batch.max + 1:
            raise field.get("batch").error(
                f"the bucket before ends at {before.batch.max}", hint="buckets follow each other without gaps"
            )
        if after.context != before.context and after.context.min != before.context.max + 1:
            raise field.get("context").error(
                f"the contexts before end at {before.context.max}", hint="contexts follow each other without gaps"
            )
    end, first = 0, None
    for _, group in groupby(buckets, key=lambda b: b.context):
        own = list(group)
        end += len(own)
        covered = (own[0].batch.min, own[-1].batch.max)
        first = covered if first is None else first
        if covered != first:
            raise (
                fields[end - 1]
                .get("batch")
                .error(
                    f"these contexts have batch {covered[0]} to {covered[1]}",
                    hint="give all contexts the same batch sizes",
                )
            )
