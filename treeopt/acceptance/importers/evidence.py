"""What engines already write, as acceptance evidence: the entry that finds the right importer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.importers.detection import detect
from treeopt.acceptance.importers.kinds import KINDS, ImportKind
from treeopt.acceptance.importers.reading import Imported, ImportedSource, ImportJob, Reading
from treeopt.acceptance.importers.recorded import joined, read_recorded, recorded_shards
from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.draft_family import DynamicTree
from treeopt.errors import FileFormatError, InputError, UnknownNameError
from treeopt.files.evidence_lines import SourceFile
from treeopt.tree import DraftTree


def read_evidence(
    paths: Sequence[Path | SourceFile],
    kind: str | None = None,
    draft_tokens: int | None = None,
    drafted: DraftTree | DynamicTree | None = None,
) -> Imported:
    """Read files of one kind; two scrapes of a server are subtracted, other files stand side by side.

    `kind` forces one of `KINDS`; `drafted` is what each step drafted, for files that do not say it: a chain or a
    dynamic tree; `draft_tokens` is K, short for a chain.

    Raises:
        InputError: a file cannot be read, is of no known kind, or contradicts itself (with file, line and numbers).
    """
    places = [path if isinstance(path, SourceFile) else SourceFile(path) for path in paths]
    files = [file for place in places for file in recorded_shards(place) or [place]]
    if not files:
        raise InputError("no file given", hint=f"kinds: {', '.join(KINDS)}")
    if draft_tokens is not None and not 1 <= draft_tokens <= MAX_DRAFT_TOKENS:
        raise InputError(f"{draft_tokens} draft tokens", hint=f"expected 1 to {MAX_DRAFT_TOKENS}")
    if draft_tokens is not None and drafted is not None:
        raise InputError("what was drafted is told twice", hint="give --drafted or --draft-tokens")
    drafted = drafted if draft_tokens is None else DynamicTree(draft_tokens, 1, draft_tokens + 1)
    found = _kind(files, kind)
    reading = Reading()
    for job in _jobs(files, found, drafted):
        reading += _read(found, job)
    if found.read is read_recorded:
        reading = joined(reading)
    return Imported(
        kind=found.name,
        sources=tuple(_with_own_names(reading.sources)),
        unplanned=reading.unplanned,
        warnings=tuple(dict.fromkeys(reading.warnings)),
    )


def _kind(files: Sequence[SourceFile], name: str | None) -> ImportKind:
    if name is not None:
        if name not in KINDS:
            raise UnknownNameError("kind of evidence", name, KINDS)
        return KINDS[name]
    kinds = [detect(file) for file in files]
    for file, kind in zip(files, kinds, strict=True):
        if kind != kinds[0]:
            raise InputError(
                f"{files[0].name} is {kinds[0].name}, {file.name} is {kind.name}",
                hint="import files of one kind at a time, then merge the profiles",
            )
    return kinds[0]


def _jobs(files: Sequence[SourceFile], kind: ImportKind, drafted: DraftTree | DynamicTree | None) -> list[ImportJob]:
    if not kind.subtracts or len(files) == 1:
        return [ImportJob(file=file, drafted=drafted) for file in files]
    if len(files) > 2:
        raise InputError(f"{len(files)} scrapes", hint="give one, or two to subtract the first from the second")
    return [ImportJob(file=files[1], earlier=files[0], drafted=drafted)]


def _read(kind: ImportKind, job: ImportJob) -> Reading:
    try:
        return kind.read(job)
    except EvidenceError as error:
        raise FileFormatError(f"{job.file.name}: {error}", hint=error.hint) from None


def _with_own_names(sources: Sequence[ImportedSource]) -> Iterator[ImportedSource]:
    """The sources, with a number behind every name that another one has too."""
    seen: dict[str, int] = {}
    for source in sources:
        name = source.profile.name
        seen[name] = seen.get(name, 0) + 1
        again = f"{name}-{seen[name]}" if seen[name] > 1 else name
        yield replace(source, profile=replace(source.profile, name=again))
