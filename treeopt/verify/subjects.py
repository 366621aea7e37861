"""Which trees of a file are verified, and what a report calls them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from treeopt.draft_family import DynamicTree, in_words
from treeopt.engines.schedule import FORMAT as SCHEDULE_FORMAT
from treeopt.engines.schedule import BatchRange, parse_schedule
from treeopt.errors import InputError
from treeopt.files.documents import Document, read_document
from treeopt.plan.plan import Plan
from treeopt.plan.reading import is_plan, parse_plan, parse_tree
from treeopt.solve.bucket import Bucket
from treeopt.solve.buckets import batches_in_words
from treeopt.tree import DraftTree

_AVERAGE: Final = " (a dynamic tree, as built on average confidence)"
_ANEW: Final = " (a dynamic tree, built anew in this step)"


@dataclass(frozen=True, kw_only=True)
class TreeSelection:
    """Which of a plan's trees: those of one batch size, of one context, or (None) of all."""

    batch: int | None = None
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class VerifiedTree:
    """A tree; `where` names the buckets that share it.

    With `dynamic` the engine builds another tree in every step, and this is the one of average confidence.
    """

    tree: DraftTree
    where: str
    dynamic: DynamicTree | None = None

    @property
    def of_step(self) -> str:
        """The same name in a report of one step."""
        return self.where.replace(_AVERAGE, _ANEW)


class VerifiedTrees(NamedTuple):
    """The plan's acceptance rule (None for a bare tree), and its different trees."""

    rule: str | None
    subjects: tuple[VerifiedTree, ...]


def subjects_of(path: Path, choice: TreeSelection) -> VerifiedTrees:
    """Every different tree of a plan or of a list of trees by batch size, as far as it is chosen, or a bare tree.

    Raises:
        InputError: the file cannot be read, or it has nothing for that batch size or context.
    """
    document = read_document(path, what="plan or tree")
    if isinstance(document.value, dict) and document.value.get("format") == SCHEDULE_FORMAT:
        return VerifiedTrees(None, _listed(document, choice))
    if not is_plan(document):
        if choice.batch is not None:
            raise InputError("a bare tree has no batch sizes", hint="drop --batch, or give a plan")
        return VerifiedTrees(None, (VerifiedTree(tree=parse_tree(document), where="the tree"),))
    plan = parse_plan(document)
    several = len(plan.contexts) > 1
    buckets = [((b.tree, b.dynamic), _name(b, several)) for b in _chosen(plan, choice)]
    return VerifiedTrees(
        plan.verification.rule,
        tuple(
            VerifiedTree(
                tree=tree, where=", ".join(name for key, name in buckets if key == (tree, dynamic)), dynamic=dynamic
            )
            for tree, dynamic in dict.fromkeys(key for key, _ in buckets)
        ),
    )


def _listed(document: Document, choice: TreeSelection) -> tuple[VerifiedTree, ...]:
    """The static trees of a `treeopt.trees/1` file; a dynamic one has no shape there."""
    ranges = [r for r in parse_schedule(document).ranges() if choice.batch is None or _holds(r, choice.batch)]
    if not ranges:
        raise InputError(f"{document.name} has no batch {choice.batch}", hint="give a batch size that it lists")
    for held in ranges:
        if isinstance(held.draft, DynamicTree):
            raise InputError(
                f"{document.name} drafts {in_words(held.draft)} at {batches_in_words(held.batch_min, held.batch_max)}",
                hint="only a plan holds its shape: give the plan that it came from, or another --batch",
            )
    names = [(r.draft, batches_in_words(r.batch_min, r.batch_max)) for r in ranges]
    return tuple(
        VerifiedTree(tree=tree, where=", ".join(name for draft, name in names if draft == tree))
        for tree in dict.fromkeys(draft for draft, _ in names)
        if isinstance(tree, DraftTree)
    )


def _holds(held: BatchRange, batch: int) -> bool:
    return held.batch_min <= batch and (held.batch_max is None or batch <= held.batch_max)


def only_subject(path: Path, choice: TreeSelection) -> VerifiedTree:
    """The tree of a choice that leaves one.

    Raises:
        InputError: as `subjects_of`, or several trees are chosen.
    """
    subjects = subjects_of(path, choice).subjects
    if len(subjects) > 1:
        found = "; ".join(subject.where for subject in subjects)
        raise InputError(
            f"{path}: the file has {len(subjects)} trees: {found}", hint="say which: add --batch B, or --context L too"
        )
    return subjects[0]


def _chosen(plan: Plan, choice: TreeSelection) -> list[Bucket]:
    contexts = [held.max for held in plan.contexts] if choice.context is None else [choice.context]
    parts = [plan.at_context(context) for context in contexts]
    if choice.batch is None:
        return [bucket for part in parts for bucket in part.buckets]
    return [part.bucket_for(choice.batch) for part in parts]


def _name(bucket: Bucket, several_contexts: bool) -> str:
    batch = f"batch {bucket.batches}"
    context = f" at context {_range(bucket.context.min, bucket.context.max)}"
    # What the engine builds differs from step to step.
    dynamic = "" if bucket.dynamic is None else _AVERAGE
    return batch + (context if several_contexts else "") + dynamic


def _range(low: int, high: int) -> str:
    return str(high) if low == high else f"{low}-{high}"
