"""Which trees of a file are verified, and what a report calls them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from treeopt.documents import read_document
from treeopt.errors import InputError
from treeopt.plan import Plan
from treeopt.plan_bucket import Bucket
from treeopt.plan_file import is_plan, parse_plan, parse_tree
from treeopt.tree import DraftTree


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which of a plan's trees: those of one batch size, of one context, or (None) of all."""

    batch: int | None = None
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A tree; `where` names the buckets that share it."""

    tree: DraftTree
    where: str


class Subjects(NamedTuple):
    """The plan's acceptance rule (None for a bare tree), and its different trees."""

    rule: str | None
    subjects: tuple[Subject, ...]


def subjects_of(path: Path, choice: Choice) -> Subjects:
    """Every different tree of a plan, as far as it is chosen, or a bare tree.

    Raises:
        InputError: the file cannot be read, or it has nothing for that batch size or context.
    """
    document = read_document(path, what="plan or tree")
    if not is_plan(document):
        if choice.batch is not None:
            raise InputError("a bare tree has no batch sizes", hint="drop --batch, or give a plan")
        return Subjects(None, (Subject(tree=parse_tree(document), where="the tree"),))
    plan = parse_plan(document)
    buckets, several = _chosen(plan, choice), len(plan.contexts) > 1
    return Subjects(
        plan.rule,
        tuple(
            Subject(tree=tree, where=", ".join(_name(b, several) for b in buckets if b.tree == tree))
            for tree in dict.fromkeys(bucket.tree for bucket in buckets)
        ),
    )


def only_subject(path: Path, choice: Choice) -> Subject:
    """The tree of a choice that leaves one.

    Raises:
        InputError: as `subjects_of`, or several trees are chosen.
    """
    subjects = subjects_of(path, choice).subjects
    if len(subjects) > 1:
        found = "; ".join(subject.where for subject in subjects)
        raise InputError(
            f"{path}: the plan has {len(subjects)} trees: {found}", hint="say which: add --batch B, or --context L too"
        )
    return subjects[0]


def _chosen(plan: Plan, choice: Choice) -> list[Bucket]:
    contexts = [held.max for held in plan.contexts] if choice.context is None else [choice.context]
    parts = [plan.at_context(context) for context in contexts]
    if choice.batch is None:
        return [bucket for part in parts for bucket in part.buckets]
    return [part.bucket_for(choice.batch) for part in parts]


def _name(bucket: Bucket, several_contexts: bool) -> str:
    batch = f"batch {bucket.batches}"
    context = f" at context {_range(bucket.context_min, bucket.context_max)}"
    # What the engine builds differs from step to step.
    dynamic = "" if bucket.dynamic is None else " (a dynamic tree, as built on average confidence)"
    return batch + (context if several_contexts else "") + dynamic


def _range(low: int, high: int) -> str:
    return str(high) if low == high else f"{low}-{high}"
