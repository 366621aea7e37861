"""The plan: one tree per bucket of batch sizes and contexts, with its evidence, as a file that programs load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from treeopt.acceptance.rules import EXACT_RULES
from treeopt.answer import Note, Span
from treeopt.errors import InputError
from treeopt.files.typed import NotNegative, Positive, Whole, json_text, write, yaml_text
from treeopt.files.writing import write_atomically
from treeopt.plan.sources import Sources
from treeopt.solve.bucket import Bucket
from treeopt.solve.problem import Limits, Objective
from treeopt.solve.time_limit import NO_LIMIT, TimeLimit
from treeopt.solve.weights import BatchWeight, OverWeights, expected
from treeopt.tree import DraftTree

FORMAT: Final = "treeopt.plan/2"


class CreatedWith(NamedTuple):
    """The version and the command that made a plan."""

    treeopt: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The acceptance rule, and the temperature where it was asked for; exact rules keep the target's law."""

    WRITTEN: ClassVar[tuple[str, ...]] = ("rule", "exact", "temperature")
    rule: str
    temperature: NotNegative | None = None

    @property
    def exact(self) -> bool:
        """Whether the rule changes nothing about what the target says."""
        return self.rule in EXACT_RULES


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Drafts for batch sizes and contexts, and everything needed to check or repeat the search.

    `context` is the longest one that the plan was made for; `limits`, `budget_tokens` and `time_limit` are the caps
    that the drafts were searched under. Buckets come by context, then by batch; every range of contexts covers the same
    batch sizes. `weights` say how often each batch size runs, where that was given; `expected` is what the plan gives
    over them at its longest context.
    """

    FORMAT: ClassVar[str] = FORMAT
    WRITTEN: ClassVar[tuple[str, ...]] = (
        *("created_with", "verification", "objective", "context", "buckets", "expected", "notes", "sources"),
        *("limits", "budget_tokens", "time_limit", "weights"),
    )
    created_with: CreatedWith
    verification: Verification
    objective: Objective
    context: Whole
    buckets: tuple[Bucket, ...]
    notes: tuple[Note, ...] = ()
    sources: Sources
    limits: Limits = Limits()
    budget_tokens: Positive | None = None
    time_limit: TimeLimit = NO_LIMIT
    weights: tuple[BatchWeight, ...] = ()

    @property
    def expected(self) -> OverWeights | None:
        """Mean tokens/s over the weights at the longest context; None without weights."""
        own = (at for bucket in self.buckets if bucket.context.max == self.context for at in bucket.by_batch)
        return expected(self.weights, own)

    @property
    def contexts(self) -> tuple[Span, ...]:
        """The ranges of contexts, shortest first."""
        return tuple(dict.fromkeys(b.context for b in self.buckets))

    @property
    def loses_by_sharing(self) -> bool:
        """Whether some batch size or context would do better with a draft of its own."""
        return any(bucket.sharing_loss > 0.0005 for bucket in self.buckets)

    def at_context(self, context: int | None = None) -> Plan:
        """The part of the plan for one context: its buckets are for batch sizes only.

        With one range of contexts that is the plan itself, whatever the context. With several, contexts below the
        first range belong to it.

        Raises:
            InputError: a context that no range holds, or none given where there are several.
        """
        ranges = self.contexts
        if len(ranges) == 1:
            return self
        listed = ", ".join(f"{r.min}-{r.max}" for r in ranges)
        if context is None:
            raise InputError(
                "the plan has trees for several contexts", hint=f"say which with --context: {listed} tokens"
            )
        for held in ranges:
            if context <= held.max:
                own = tuple(b for b in self.buckets if b.context.max == held.max)
                return replace(self, context=held.max, buckets=own)
        raise InputError(f"the plan has no context {context}", hint=f"it covers {listed}; search again with --contexts")

    def bucket_for(self, batch: int, context: int | None = None) -> Bucket:
        """The bucket that a batch size, and where it matters a context, falls into.

        Raises:
            InputError: the plan was not made for that batch size or context (see `at_context`).
        """
        buckets = self.at_context(context).buckets
        for bucket in buckets:
            if bucket.batch.min <= batch <= bucket.batch.max:
                return bucket
        ranges = ", ".join(b.batches for b in buckets)
        raise InputError(
            f"the plan has no batch {batch}", hint=f"it covers {ranges}; search again with that batch size"
        )

    def tree_for(self, batch: int, context: int | None = None) -> DraftTree:
        """The tree to verify at a batch size and context; the empty tree means plain decoding.

        Sizes that the plan does not cover get the nearest bucket's tree, as in the runtime and in what engines load: a
        serving loop must draft something. The bucket's numbers do not hold there, so `bucket_for` refuses.

        Raises:
            InputError: no request at all, or no context given where there are several.
        """
        if batch < 1:
            raise InputError(f"a step of {batch} requests", hint="a step has at least one request")
        if context is not None:
            context = min(max(context, self.contexts[0].min), self.contexts[-1].max)
        own = self.at_context(context)
        return own.bucket_for(min(max(batch, own.buckets[0].batch.min), own.buckets[-1].batch.max)).tree

    def document(self) -> dict[str, Any]:
        """The plan as the value of its file, keys in their stable order."""
        document: dict[str, Any] = write(self)
        return document

    def yaml(self) -> str:
        """The plan's file."""
        return yaml_text(self)

    def json(self) -> str:
        """The same document as JSON."""
        return json_text(self)

    def save(self, path: Path) -> None:
        """Write the file atomically; its sources are named by the way from its folder.

        Raises:
            InputError: it cannot be written; an existing file is untouched.
        """
        own = replace(self, sources=self.sources.seen_from(path.parent)) if is_regular(path) else self
        write_atomically(path, own.yaml(), what="plan")


def is_regular(path: Path) -> bool:
    """Whether a plan at that path has a folder of its own: a pipe or a device has none."""
    return path.is_file() or not path.exists()
