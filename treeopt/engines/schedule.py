"""What an engine drafts at each batch size: static trees, chains, dynamic trees or nothing, from 1 request on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Final, NamedTuple

from treeopt.draft_family import Draft, DynamicTree
from treeopt.errors import InputError
from treeopt.files.documents import Document
from treeopt.files.typed import Between, Count, check_format, read, yaml_text
from treeopt.plan.reading import TREE_FORMAT
from treeopt.tree import DraftTree

FORMAT: Final = "treeopt.trees/1"


class BatchSpan(NamedTuple):
    """Batch sizes, both ends included; `max` is null where it is without end."""

    min: Count
    max: Count | None = None


class DynamicNumbers(NamedTuple):
    """A dynamic tree: drafter steps, guesses per node, and nodes, the root counted."""

    steps: Count
    topk: Count
    nodes: Annotated[int, Between(2)]


@dataclass(frozen=True, kw_only=True)
class TreesRange:
    """What is drafted at a range of batch sizes: the `paths` of a static tree, or a `dynamic` one."""

    SPARSE: ClassVar[bool] = True

    batch: BatchSpan
    paths: DraftTree | None = None
    dynamic: DynamicNumbers | None = None

    @classmethod
    def of(cls, batch: BatchSpan, draft: Draft) -> TreesRange:
        """From a draft."""
        if isinstance(draft, DynamicTree):
            return cls(batch=batch, dynamic=DynamicNumbers(*draft))
        return cls(batch=batch, paths=draft)

    @property
    def draft(self) -> Draft | None:
        """None where the file says none."""
        return self.paths if self.dynamic is None else DynamicTree(*self.dynamic)


@dataclass(frozen=True, kw_only=True)
class TreesFile:
    """Drafts by batch size: ranges that follow each other from batch 1 on."""

    FORMAT: ClassVar[str] = FORMAT

    ranges: tuple[TreesRange, ...]


@dataclass(frozen=True, kw_only=True)
class TreeFile:
    """One static tree for all batch sizes."""

    FORMAT: ClassVar[str] = TREE_FORMAT

    paths: DraftTree


class ScheduleStep(NamedTuple):
    """From `batch_min` requests on, up to the next step."""

    batch_min: int
    draft: Draft


class BatchRange(NamedTuple):
    """One draft for the batch sizes `batch_min`..`batch_max`; None is without end."""

    batch_min: int
    batch_max: int | None
    draft: Draft


@dataclass(frozen=True, kw_only=True)
class DraftSchedule:
    """Drafts by batch size; equal neighbours are merged when it is built.

    `covers` is the largest batch size that the author spoke of (a plan's last), None where it is meant for all.

    Raises:
        InputError: steps that do not start at batch 1 or do not rise.
    """

    steps: tuple[ScheduleStep, ...]
    covers: int | None = None

    def __post_init__(self) -> None:
        if not self.steps or self.steps[0].batch_min != 1:
            raise InputError("the batch sizes do not start at 1", hint="say what is drafted from one request on")
        for before, after in pairwise(self.steps):
            if after.batch_min <= before.batch_min:
                raise InputError(f"batch {after.batch_min} follows {before.batch_min}", hint="list rising batch sizes")
        if self.covers is not None and self.covers < self.steps[-1].batch_min:
            raise InputError(
                f"the batch sizes end at {self.covers}, the last step starts at {self.steps[-1].batch_min}",
                hint="end them where the last step starts, or later",
            )
        kept = [s for i, s in enumerate(self.steps) if i == 0 or s.draft != self.steps[i - 1].draft]
        object.__setattr__(self, "steps", tuple(kept))

    @classmethod
    def constant(cls, draft: Draft) -> DraftSchedule:
        """The same draft at every batch size."""
        return cls(steps=(ScheduleStep(1, draft),))

    @property
    def only(self) -> Draft | None:
        """The draft of all batch sizes, or None where they differ."""
        return self.steps[0].draft if len(self.steps) == 1 else None

    @property
    def only_tree(self) -> DraftTree:
        """The static tree of all batch sizes.

        Raises:
            InputError: there is none.
        """
        if not isinstance(self.only, DraftTree):
            raise InputError("one static tree is loaded, for all batch sizes", hint="give one tree")
        return self.only

    @property
    def speculates(self) -> bool:
        """False where nothing is drafted at any batch size."""
        return self.longest > 0

    @property
    def longest(self) -> int:
        """The deepest draft's length: K, where all are chains."""
        return max(d.num_steps if isinstance(d, DynamicTree) else d.depth for _, d in self.steps)

    def at(self, batch: int) -> Draft:
        """The draft at a batch size of 1 or more."""
        return next(step.draft for step in reversed(self.steps) if step.batch_min <= batch)

    def ranges(self) -> Iterator[BatchRange]:
        """The same as ranges; the last one ends at `covers`."""
        for step, after in pairwise(self.steps):
            yield BatchRange(step.batch_min, after.batch_min - 1, step.draft)
        yield BatchRange(self.steps[-1].batch_min, self.covers, self.steps[-1].draft)

    def document(self) -> TreeFile | TreesFile:
        """What its file holds: a bare tree where one static tree is all there is."""
        if isinstance(self.only, DraftTree):
            return TreeFile(paths=self.only)
        return TreesFile(
            ranges=tuple(TreesRange.of(BatchSpan(r.batch_min, r.batch_max), r.draft) for r in self.ranges())
        )

    def yaml(self) -> str:
        """The file."""
        return yaml_text(self)


def parse_schedule(document: Document) -> DraftSchedule:
    """Read a `treeopt.trees/1` file.

    Raises:
        FileFormatError: it is none, or its ranges do not follow each other from batch 1 (with the line).
    """
    root = document.root
    check_format(root, FORMAT, what="list of trees by batch size")
    ranges, fields = read(TreesFile, root).ranges, root.get("ranges").items()
    end: int | None = 0
    steps: list[ScheduleStep] = []
    for field, found in zip(fields, ranges, strict=True):
        batch, (low, high) = field.get("batch"), found.batch
        if end is None or low != end + 1:
            where = "goes on without end" if end is None else f"ends at {end}"
            raise batch.error(f"what comes before {where}", hint="ranges follow each other from batch 1 without gaps")
        if high is not None:
            batch.get("max").integer(low=low)
        if found.draft is None:
            raise field.error("'paths' is missing", hint="add `paths:` or `dynamic:`")
        end = high
        steps.append(ScheduleStep(low, found.draft))
    if not steps:
        raise root.get("ranges").error("there is no range", hint="list at least one")
    return DraftSchedule(steps=tuple(steps), covers=end)
