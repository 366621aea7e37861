"""The plan: one tree per bucket of batch sizes and contexts, with its evidence, as a file that programs load."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from treeopt.acceptance.rules import EXACT_RULES
from treeopt.errors import InputError
from treeopt.files.documents import dump_yaml
from treeopt.files.writing import write_atomically
from treeopt.plan.bucket import Bucket
from treeopt.solve.problem import Limits
from treeopt.solve.time_limit import NO_LIMIT, TimeLimit
from treeopt.tree import DraftTree

FORMAT: Final = "treeopt.plan/1"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A profile that the plan was made from: `reference` is the shipped name or the file as it was given."""

    name: str
    reference: str
    sha256: str
    facts: tuple[tuple[str, Any], ...] = ()


class Contexts(NamedTuple):
    """A range of contexts, both ends included."""

    min: int
    max: int


@dataclass(frozen=True, kw_only=True)
class FormatLoss:
    """What an engine would draft through one of its formats, and the share lost against the plan without an engine."""

    format: str
    drafts: str
    mean_loss: float
    worst_loss: float


@dataclass(frozen=True, kw_only=True)
class PlanEngine:
    """The engine that a plan was made for: its format, whether it may draft nothing, and all its formats' losses."""

    name: str
    version: str
    format: str
    allow_off: bool
    formats: tuple[FormatLoss, ...]

    @property
    def wanted(self) -> str:
        """The engine as `--engine` takes it; a commit or no version at all is the one that treeopt knows."""
        return f"{self.name}=={self.version}" if self.version[:1].isdecimal() else self.name


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Trees for batch sizes and contexts, and everything needed to check or repeat the search.

    `context` is the longest one that the plan was made for; `limits`, `budget_tokens` and `latency` are the caps that
    the trees were searched under; `cost` is the table of step times that stood in for the model of the hardware, and
    `engine` what the trees were made for, if anything. Buckets come by context, then by batch; every range of
    contexts covers the same batch sizes.
    """

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
    limits: Limits = Limits()
    budget_tokens: float | None = None
    latency: TimeLimit = NO_LIMIT
    cost: Source | None = None
    engine: PlanEngine | None = None
    buckets: tuple[Bucket, ...]

    @property
    def contexts(self) -> tuple[Contexts, ...]:
        """The ranges of contexts, shortest first."""
        return tuple(dict.fromkeys(Contexts(b.context_min, b.context_max) for b in self.buckets))

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
            raise InputError("the plan has trees for several contexts", hint=f"say which, in tokens: {listed}")
        for held in ranges:
            if context <= held.max:
                own = tuple(b for b in self.buckets if b.context_max == held.max)
                return replace(self, context=held.max, buckets=own)
        raise InputError(f"the plan has no context {context}", hint=f"it covers {listed}; search again with --contexts")

    def bucket_for(self, batch: int, context: int | None = None) -> Bucket:
        """The bucket that a batch size, and where it matters a context, falls into.

        Raises:
            InputError: the plan was not made for that batch size or context (see `at_context`).
        """
        buckets = self.at_context(context).buckets
        for bucket in buckets:
            if bucket.batch_min <= batch <= bucket.batch_max:
                return bucket
        ranges = ", ".join(b.batches for b in buckets)
        raise InputError(
            f"the plan has no batch {batch}", hint=f"it covers {ranges}; search again with that batch size"
        )

    def tree_for(self, batch: int, context: int | None = None) -> DraftTree:
        """The tree to verify at a batch size and context; the empty tree means plain decoding.

        Raises:
            InputError: the plan was not made for that batch size or context (see `at_context`).
        """
        return self.bucket_for(batch, context).tree

    def document(self) -> dict[str, Any]:
        """The plan as the value of its file, keys in their stable order."""
        latency = self.latency
        return {
            "format": FORMAT,
            "created_with": {"treeopt": self.version, "command": self.command},
            "verification": {"rule": self.rule, "exact": self.rule in EXACT_RULES},
            "ranks": _source_document(self.ranks),
            "hardware": _source_document(self.hardware),
            "cost": None if self.cost is None else _source_document(self.cost),
            "model": _source_document(self.model),
            "drafter": {"kind": self.drafter},
            "engine": None if self.engine is None else _engine_document(self.engine),
            "context": self.context,
            "objective": self.objective,
            "limits": {**asdict(self.limits), "budget_tokens": self.budget_tokens},
            "latency": {
                "output_tokens": latency.output_tokens,
                "max_mean_s": latency.max_mean_s,
                "max_p99_s": latency.max_p99_s,
            },
            "notes": list(self.notes),
            "buckets": [bucket.document() for bucket in self.buckets],
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


def _engine_document(engine: PlanEngine) -> dict[str, Any]:
    losses = [
        {
            "format": f.format,
            "drafts": f.drafts,
            "mean_loss": float(f"{f.mean_loss:.6g}"),
            "worst_loss": float(f"{f.worst_loss:.6g}"),
        }
        for f in engine.formats
    ]
    return {
        "name": engine.name,
        "version": engine.version,
        "format": engine.format,
        "allow_off": engine.allow_off,
        "formats": losses,
    }


def _source_document(source: Source) -> dict[str, Any]:
    given = {} if source.reference == source.name else {"file": source.reference}
    return {"name": source.name, **given, "sha256": source.sha256, **dict(source.facts)}
