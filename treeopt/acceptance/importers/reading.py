"""What an importer hands back: rank profiles, what each supports, and what was found but cannot be planned from."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Final

from treeopt.acceptance.chain import ChainRanks
from treeopt.acceptance.draft_lengths import DraftLengths
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.position import MeanLength
from treeopt.acceptance.profile import Conditions, RankEvidence, RankProfile
from treeopt.acceptance.table import DepthRanks
from treeopt.draft_family import DynamicTree, chain_length
from treeopt.files.evidence_lines import Place, SourceFile
from treeopt.files.typed import Key
from treeopt.tree import DraftTree

SERVED: Final = Conditions(sampling="draft-starts")  # a server counts where its drafts start
CHAIN_ASSUMED: Final = (
    "taken as chains (--speculative-eagle-topk 1), which the file does not say: a tree has other means"
)
TREE_UNKNOWN: Final = "the file does not say which tree was verified: give K if it was a chain of K drafts"
_NAME_CHARS: Final = 120
_LONG: Final = 8  # draft tokens from which on an assumed chain must accept its share
_WASTED: Final = 4.0
_COLLECT: Final = "`treeopt ranks collect` records the other guesses"


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What the engine counted, or said on average; None where it did not say.

    `drafts` are what was verified, `steps` the request-steps where some had no draft; the mean is over all steps and
    counts the bonus token.
    """

    draft_tokens: int | None = None
    drafts: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    steps: int | None = None
    mean_accepted_length: float | None = None


@dataclass(frozen=True, kw_only=True)
class KnownSum:
    """Ranks of one depth whose probabilities are known only together: no split of them is evidence."""

    depth: int
    first_rank: int
    last_rank: int
    probability: float

    def __str__(self) -> str:
        ranks = f"rank {self.first_rank}"
        if self.last_rank > self.first_rank:
            ranks = f"ranks {self.first_rank} to {self.last_rank} together"
        return f"depth {self.depth}: {ranks} {self.probability:.4f}"


@dataclass(frozen=True, kw_only=True)
class ImportedSource:
    """One speculative source found in a file: its evidence, and what stands beside it."""

    WRITTEN: ClassVar = ("profile", "supports", "counts", "known_sums")

    profile: RankProfile
    tally: Annotated[Tally, Key("counts")]
    known_sums: tuple[KnownSum, ...] = ()

    @property
    def supports(self) -> str:
        """What can be planned from it, in a sentence."""
        return supports(self.profile.evidence)


@dataclass(frozen=True, kw_only=True)
class Unplanned:
    """A measured mean from which nothing can be planned, and why."""

    name: str
    mean_accepted_length: float
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: mean accepted length {self.mean_accepted_length:.4g}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All that one importer found."""

    sources: tuple[ImportedSource, ...] = ()
    unplanned: tuple[Unplanned, ...] = ()
    warnings: tuple[str, ...] = ()

    def __add__(self, other: Reading) -> Reading:
        return Reading(
            sources=self.sources + other.sources,
            unplanned=self.unplanned + other.unplanned,
            warnings=self.warnings + other.warnings,
        )


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The evidence of one or more files of one kind."""

    FORMAT: ClassVar[str] = "treeopt.import/1"

    kind: str
    sources: tuple[ImportedSource, ...]
    unplanned: tuple[Unplanned, ...]
    warnings: tuple[str, ...]

    @property
    def profiles(self) -> tuple[RankProfile, ...]:
        """One rank profile per speculative source."""
        return tuple(source.profile for source in self.sources)

    @property
    def supports(self) -> str:
        """What can be planned from the files, in a sentence."""
        return "; ".join(dict.fromkeys(source.supports for source in self.sources)) or "nothing can be planned from it"


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    """What an importer is asked to read: a file, the scrape to subtract from it, what was drafted if that is told."""

    file: SourceFile
    earlier: SourceFile | None = None
    drafted: DraftTree | DynamicTree | None = None

    @property
    def draft_tokens(self) -> int | None:
        """K of the chain that was drafted, where that is told."""
        return None if self.drafted is None else chain_length(self.drafted)

    @property
    def tree(self) -> DynamicTree | None:
        """The dynamic tree that was drafted, where that is told."""
        return self.drafted if isinstance(self.drafted, DynamicTree) and self.draft_tokens is None else None

    def source(
        self,
        evidence: RankEvidence,
        *,
        label: str = "",
        tally: Tally,
        conditions: Conditions,
        known_sums: tuple[KnownSum, ...] = (),
        documents: int = 0,
        note: str = "",
        lengths: DraftLengths | None = None,
    ) -> ImportedSource:
        """A source whose profile is named after the file; the note says what every reader of a result must know."""
        sums = f"ranks from {min(s.first_rank for s in known_sums)} on are known only as sums" if known_sums else ""
        profile = RankProfile(
            name=self.name(label),
            evidence=evidence,
            conditions=conditions,
            sha256=self.sha256,
            documents=documents,
            note="; ".join(filter(None, [supports(evidence), sums, note])),
            lengths=lengths,
        )
        return ImportedSource(profile=profile, tally=tally, known_sums=known_sums)

    def mean_reading(
        self,
        place: Place,
        length: float | None,
        draft_tokens: int | None,
        *,
        drafts: int | None = None,
        accepted: int | None = None,
        conditions: Conditions = SERVED,
        label: str = "",
        note: str = "",
        assumed_chain: bool = False,
        unknown: str = "the number of drafts is not known: add `draft tokens: K` to the file, or give it",
    ) -> Reading:
        """Mean evidence of chains of K, as it is given or stated; a mean that nothing can be planned from without K."""
        if length is None:
            raise place.error("neither counts, nor rates, nor a mean", hint="give the whole report")
        K = self.draft_tokens or draft_tokens
        if self.tree is not None:
            K, note = self.tree.num_draft_tokens - 1, f"of the tree {_words(self.tree)}"
        elif assumed_chain and self.draft_tokens is None and K is not None:
            check_likely(place, length, K)
        if K is None:
            unplanned = Unplanned(name=self.name(label), mean_accepted_length=length, reason=unknown)
            return Reading(unplanned=(unplanned,))
        evidence = MeanLength(mean_accepted_length=length, draft_tokens=K, drafts=drafts, tree=self.tree)
        tally = Tally(draft_tokens=K, drafts=drafts, accepted_tokens=accepted, mean_accepted_length=length)
        return Reading(sources=(self.source(evidence, label=label, tally=tally, conditions=conditions, note=note),))

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that is read."""
        digest = hashlib.sha256()
        for file in filter(None, [self.earlier, self.file]):
            for chunk in file.chunks():
                digest.update(chunk)
        return digest.hexdigest()

    def name(self, label: str) -> str:
        """A profile name: the file's, and what tells its sources apart."""
        words = f"{self.file.path.name.split('.')[0]} {label}"
        return re.sub(r"[^\w.]+", "-", words).strip("-")[:_NAME_CHARS] or "imported"


def _words(tree: DynamicTree) -> str:
    return f"sglang:{tree.num_steps},{tree.topk},{tree.num_draft_tokens}"


def check_likely(place: Place, length: float, draft_tokens: int) -> None:
    """A chain is no longer than is worth drafting: where far more was drafted than accepted, it was a tree.

    Raises:
        FileFormatError: the chain that a file is taken for is that long.
    """
    if draft_tokens >= _LONG and length - 1.0 < draft_tokens / _WASTED:
        raise place.error(
            f"{draft_tokens} tokens drafted per step and a length of {length:.4g}: a tree was drafted, not a chain",
            hint=f"say what was drafted: --drafted sglang:STEPS,TOPK,{draft_tokens + 1} "
            f"(or --drafted chain:{draft_tokens} if it was one)",
        )


def supports(evidence: RankEvidence) -> str:
    """What can be planned from one evidence, in a sentence."""
    if isinstance(evidence, PathCounts):
        return f"trees up to {evidence.depth} deep with {evidence.ranks} guesses per node, from joint counts"
    if isinstance(evidence, ChainRanks):
        depth, ranks = evidence.rates.shape
        return (
            f"chains up to {depth} deep and up to {ranks} guesses at each of their misses, as counted; "
            "behind a wrong guess by a guess (its interval says)"
        )
    if isinstance(evidence, DepthRanks) and evidence.rates.shape[1] > 1:
        depth, ranks = evidence.rates.shape
        return f"trees up to {depth} deep with {ranks} guesses per node, taking the depths as independent"
    if isinstance(evidence, MeanLength) and evidence.tree is not None:
        return f"the length of {_words(evidence.tree)}; other drafts by a guess (its interval says): {_COLLECT}"
    if isinstance(evidence, MeanLength):
        guess = (
            ""
            if evidence.draft_tokens == 1
            else ", shorter ones by a guess of how acceptance falls (its interval says)"
        )
        return f"chains up to {evidence.draft_tokens} deep{guess}, never widths: {_COLLECT}"
    depth = len(evidence.rates) if isinstance(evidence, DepthRanks) else len(evidence.survival)
    return f"chains up to {depth} deep, never widths: only the first guess was counted, {_COLLECT}"
