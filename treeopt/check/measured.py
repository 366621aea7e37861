"""What a metrics file says about a running plan: tokens per step, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from treeopt.acceptance.conversions import survival_from_conditional
from treeopt.acceptance.errors import NoDraftsError, SpeculationOffError
from treeopt.acceptance.importers import ImportedSource, read_evidence
from treeopt.acceptance.loading import is_profile, is_trace, load_profile
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.position import PositionSurvival
from treeopt.acceptance.profile import RankProfile
from treeopt.acceptance.table import DepthRanks
from treeopt.arrays import FloatArray
from treeopt.check.batch import mean_batch
from treeopt.check.change import length_error
from treeopt.check.windows import LogWindow, pooled, read_windows
from treeopt.files.evidence_lines import SourceFile

# How far the mean draft tokens per draft may be from a length and still be its: the last drafts of a text are shorter,
# and where the batch size crosses a border some are of the neighbouring length.
TOLERANCE: Final = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One source of a metrics file.

    Args:
        name: what the importer called it.
        draft_tokens: the most tokens that a draft had, K of a chain; None where the file does not say.
        drafted: mean draft tokens per draft, None where they were not counted.
        steps: over how many steps of requests `length` is a mean, None where they were not counted.
        length: tokens per step over all steps, those without a draft too, the bonus token counted; None where only
            ranks were measured.
        survival: `[K]` share of the steps in which a draft was accepted to each depth, or None.
        error: standard error of `length`, where the file allows one.
        batch: mean running requests per step, where the file tells.
        ranks: evidence of single ranks, from which E of any tree follows, or None.
    """

    name: str
    draft_tokens: int | None = None
    drafted: float | None = None
    steps: float | None = None
    length: float | None = None
    survival: FloatArray | None = None
    error: float | None = None
    batch: float | None = None
    ranks: RankProfile | None = None

    def drafts_about(self, tokens: int) -> bool:
        """Whether its drafts were of that many tokens: 1.98 per draft are 2, 2.6 are not."""
        if self.drafted is None:
            return self.draft_tokens == tokens
        return abs(self.drafted - tokens) <= TOLERANCE

    @property
    def per_draft(self) -> str | None:
        """Draft tokens per draft, for messages; None where nothing tells."""
        known = self.draft_tokens if self.drafted is None else self.drafted
        return None if known is None else f"{known:.3g}"


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """All that the files hold.

    `drafted_nothing` is true where they count steps but no draft; `off` says why none ever will be, or is empty.
    """

    kind: str
    sources: tuple[Measured, ...]
    windows: tuple[LogWindow, ...]
    drafted_nothing: bool
    warnings: tuple[str, ...]
    off: str = ""


def read_metrics(paths: Sequence[Path], kind: str | None = None, draft_tokens: int | None = None) -> Metrics:
    """Read what any importer reads, a rank profile or a trace; two scrapes of one server are subtracted.

    Raises:
        InputError: a file cannot be read, or is no evidence.
    """
    files = [SourceFile(path) for path in paths]
    if len(files) == 1 and (is_trace(files[0]) or is_profile(files[0])):
        profile = load_profile(files[0], keep=True)
        return Metrics(
            kind=profile.kind, sources=(of_profile(profile),), windows=(), drafted_nothing=False, warnings=()
        )
    try:
        imported = read_evidence(files, kind, draft_tokens)
    except SpeculationOffError as error:
        off = str(error)
        return Metrics(kind="metrics", sources=(), windows=(), drafted_nothing=True, warnings=(off,), off=off)
    except NoDraftsError:
        return Metrics(kind=kind or "metrics", sources=(), windows=(), drafted_nothing=True, warnings=())
    windows = tuple(w for file in files for w in read_windows(file, imported.kind))
    batch = mean_batch(files, imported.kind, windows)
    alone = len(imported.sources) == 1  # else the file's mean is of several
    sources = [replace(_measured(source), batch=batch if alone else None) for source in imported.sources]
    sources += [Measured(name=u.name, length=u.mean_accepted_length) for u in imported.unplanned]
    return Metrics(
        kind=imported.kind,
        sources=tuple(_with_error(source, windows, alone=len(sources) == 1) for source in sources),
        windows=windows,
        drafted_nothing=not sources and all(window.is_off for window in windows),
        warnings=imported.warnings,
    )


def _measured(source: ImportedSource) -> Measured:
    tally, known = source.tally, of_profile(source.profile)
    drafted = tally.drafted_tokens / tally.drafts if tally.drafted_tokens is not None and tally.drafts else None
    return replace(known, draft_tokens=tally.draft_tokens, drafted=drafted)


def of_profile(profile: RankProfile) -> Measured:
    """A rank profile as a measurement: a chain's counts as its length, several ranks as they are."""
    evidence = profile.evidence
    if type(evidence) is DepthRanks and evidence.rates.shape[1] == 1:  # a chain's counts in another form
        evidence = PositionSurvival(survival=survival_from_conditional(evidence.rates[:, 0]), drafts=evidence.trials)
    if isinstance(evidence, DepthRanks | PathCounts):
        return Measured(name=profile.name, steps=evidence.trials, ranks=profile)
    return Measured(
        name=profile.name,
        draft_tokens=len(evidence.survival),
        steps=evidence.drafts,
        length=evidence.mean_accepted_length,
        survival=evidence.survival if isinstance(evidence, PositionSurvival) else None,
        # A mean alone has the variance of drafts that are accepted alike at every depth, which is near enough.
        error=None if evidence.drafts is None else length_error(evidence.survival, evidence.drafts),
    )


def _with_error(source: Measured, windows: Sequence[LogWindow], *, alone: bool) -> Measured:
    """The source with the error that the spread of its windows shows, where that is larger than its counts tell."""
    own = [w for w in windows if not w.is_off and (alone or w.draft_tokens == source.draft_tokens)]
    if source.length is None or not own or (spread := pooled(own).error) is None:
        return source
    return replace(source, error=max(spread, source.error or 0.0))
