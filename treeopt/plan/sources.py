"""What a plan was made from, by type: each with the name, file and hash that find it again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from treeopt.files.typed import Count, NotNegative, Share, Whole

_S = TypeVar("_S", bound="Source")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A shipped profile by name, or a file: in a plan's file its path from the plan's folder, else from here."""

    name: str
    file: str | None = None
    sha256: str

    @property
    def reference(self) -> str:
        """What an option such as `--ranks` takes to find it."""
        return self.name if self.file is None else self.file

    def located(self, where: Callable[[str], str]) -> Self:
        """The same source, its files' paths changed by `where`."""
        return self if self.file is None else replace(self, file=where(self.file))


@dataclass(frozen=True, kw_only=True)
class RanksPart:
    """One kind of traffic of a mixture: its profile, and its share of the drafts."""

    name: str
    file: str | None = None
    share: Share


@dataclass(frozen=True, kw_only=True)
class RanksSource(Source):
    """The acceptance evidence: its kind, how far it reaches and how much it is; `parts` of a mixture.

    `depth` and `ranks` are the deepest guess and the guesses per position that it has counted: of `ranks: 1` widths are
    not known. `drafter` is what guessed, in the words of whoever counted; `sampling` is `draft-starts` for a trace,
    which is replayed.
    """

    evidence: str
    depth: Whole | None = None
    ranks: Whole | None = None
    positions: Whole | None = None
    documents: Whole | None = None
    drafter: str | None = None
    temperature: NotNegative | None = None
    sampling: str | None = None
    parts: tuple[RanksPart, ...] = ()

    @property
    def reference(self) -> str:
        """What `--ranks` or `--mix` takes to find it."""
        if not self.parts:
            return super().reference
        return ",".join(f"{part.file or part.name}={part.share:g}" for part in self.parts)

    @property
    def knows_widths(self) -> bool:
        """Whether more than the first guess was counted; without that no tree can be judged."""
        return self.ranks is None or self.ranks > 1

    def located(self, where: Callable[[str], str]) -> Self:
        """The same, with every part's file."""
        parts = tuple(part if part.file is None else replace(part, file=where(part.file)) for part in self.parts)
        return replace(super().located(where), parts=parts)


@dataclass(frozen=True, kw_only=True)
class HardwareSource(Source):
    """The hardware profile: where its numbers come from, its ridge, and what the user changed about its graphs."""

    source: str = "unknown"
    ridge_tokens: float | None = None
    capture_tokens: tuple[Count, ...] | None = None
    capture_limit: Count | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSource(Source):
    """The target model, its number format and parallelism, and what the user changed about its experts."""

    dtype: str = "bf16"
    tp: Count = 1
    kv_dtype: str | None = None
    expert_skew: NotNegative | None = None
    expert_correlation: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class CostSource(Source):
    """The table of step times that stands in for the model of the hardware."""


@dataclass(frozen=True, kw_only=True)
class DrafterSource:
    """The drafter, as `--drafter` names its kind; `file` is the draft model's or the head's.

    `num_speculative_tokens` is how many tokens the engine is started to guess per pass, of a drafter of blocks.
    """

    kind: str
    file: str | None = None
    num_speculative_tokens: Count | None = None

    @property
    def reference(self) -> str:
        """What `--drafter` takes."""
        return self.kind if self.file is None else f"{self.kind}:{self.file}"

    def located(self, where: Callable[[str], str]) -> DrafterSource:
        """The same drafter, its file's path changed by `where`."""
        return self if self.file is None else replace(self, file=where(self.file))


@dataclass(frozen=True, kw_only=True)
class FormatLoss:
    """What an engine would draft through one of its formats, and the share lost against the plan without an engine.

    None where the evidence has no widths: what a tree would gain is not known.
    """

    format: str
    drafts: str
    mean_loss: float | None
    worst_loss: float | None


@dataclass(frozen=True, kw_only=True)
class EngineSource:
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
class Sources:
    """All that a plan was made from; no `cost` where kernels price the step, no `engine` where any may load it."""

    ranks: RanksSource
    hardware: HardwareSource
    model: ModelSource
    drafter: DrafterSource
    engine: EngineSource | None = None
    cost: CostSource | None = None

    def located(self, where: Callable[[str], str]) -> Sources:
        """The same sources, their files' paths changed by `where`."""
        return replace(
            self,
            ranks=self.ranks.located(where),
            hardware=self.hardware.located(where),
            model=self.model.located(where),
            drafter=self.drafter.located(where),
            cost=None if self.cost is None else self.cost.located(where),
        )

    def seen_from(self, folder: Path) -> Sources:
        """As a plan in that folder names its files: by the way from there; absolute paths stay."""
        return self.located(lambda file: file if os.path.isabs(file) else os.path.relpath(file, folder))

    def found_from(self, folder: Path) -> Sources:
        """What a plan in that folder names, as it is found from here.

        Plans of older versions name files by the way from where the search ran: such a file counts where the plan's
        own folder has none.
        """

        def found(file: str) -> str:
            beside = os.path.normpath(folder / file)
            return file if os.path.exists(file) and not os.path.exists(beside) else beside

        return self.located(found)


__all__ = [
    "CostSource",
    "DrafterSource",
    "EngineSource",
    "FormatLoss",
    "HardwareSource",
    "ModelSource",
    "RanksPart",
    "RanksSource",
    "Source",
    "Sources",
]
