"""What the recorder inside a serving engine wrote: per draft, the ranks along it up to the first miss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from treeopt.acceptance.chain import ChainCounter
from treeopt.acceptance.importers.reading import SERVED, ImportedSource, ImportJob, Reading, Tally
from treeopt.acceptance.merge import merge
from treeopt.acceptance.paths import MAX_RANKS
from treeopt.files.evidence_lines import Line, SourceFile, require
from treeopt.tree import MAX_DEPTH

RECORDED_WORDS: Final = '"treeopt_recorded"'
_HEADER: Final = '{"treeopt_recorded"'
_HEAD_BYTES: Final = 4096
_HINT: Final = "a recorded shard starts with its header, then has a JSON object with ranks_to_miss on each line"


def read_recorded(job: ImportJob) -> Reading:
    """A chain's ranks: depth d was reached by the drafts whose first d - 1 tokens were right."""
    counter, drafts, drafted, accepted, run, cut = ChainCounter(), 0, 0, 0, 0, 0
    dropped: dict[str, int] = {}
    engine: Any = None
    for line in job.file.lines():
        found = _row(line) if run or RECORDED_WORDS in line.text else _Row(None)
        row, cut = found.row, cut + found.cut
        if row is None:
            continue
        if "treeopt_recorded" in row:  # several shards end to end; documents of one run go on in the next
            run += 1
            engine = row.get("run", run)
            before = row.get("dropped", 0)
            dropped[str(engine)] = before if type(before) is int else 0
            continue
        ranks, held = row["ranks_to_miss"], (row["document"], row["drafted"], row["accepted"])
        if not _plausible(ranks, *held):
            raise line.error("not a draft's ranks", hint=_HINT)
        counter.add((str(engine), held[0]), ranks)
        drafts, drafted, accepted = drafts + 1, drafted + held[1], accepted + held[2]
    require(bool(drafts), job.file, "recorded draft")
    tally = Tally(
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        mean_accepted_length=1 + accepted / drafts,
    )
    evidence = counter.result()
    source = job.source(evidence, tally=tally, conditions=SERVED, documents=counter.documents)
    return Reading(sources=(source,), warnings=tuple(_losses(job.file.name, cut, sum(dropped.values()))))


def _losses(name: str, cut: int, dropped: int) -> Iterator[str]:
    if cut:
        yield f"{name}: {cut} line{'s' * (cut > 1)} cut off, as a killed server leaves them: what it held is lost"
    if dropped:
        yield f"{name}: the recorder had dropped {dropped:,} drafts: its disk was full, slow or could not be written"


def joined(reading: Reading) -> Reading:
    """Shards of one or several engines, as one source."""
    if len(reading.sources) < 2:
        return reading
    profiles, tallies = [source.profile for source in reading.sources], [source.tally for source in reading.sources]
    drafts, drafted, accepted = (
        sum(getattr(tally, name) or 0 for tally in tallies) for name in ("drafts", "drafted_tokens", "accepted_tokens")
    )
    tally = Tally(
        drafts=drafts,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        mean_accepted_length=1 + accepted / drafts,
    )
    merged = merge(profiles, name=f"{profiles[0].name}-and-{len(profiles) - 1}-more")
    return Reading(sources=(ImportedSource(profile=merged, tally=tally),), warnings=reading.warnings)


def recorded_shards(place: SourceFile) -> list[SourceFile]:
    """The shards in a folder that a recorder wrote to; none elsewhere."""
    if not place.path.is_dir():
        return []
    files = [SourceFile(path, what=place.what) for path in sorted(place.path.glob("*.jsonl"))]
    return [file for file in files if RECORDED_WORDS.encode() in next(file.chunks(), b"")[:_HEAD_BYTES]]


class _Row(NamedTuple):
    """A line's object, if it has one, and whether a killed process cut a line off here."""

    row: dict[str, Any] | None
    cut: bool = False


def _row(line: Line) -> _Row:
    """Lines are cut off at the end of a shard; behind it the header of another may follow in the same line."""
    if not line.text.strip():
        return _Row(None)
    header = line.text.rfind(_HEADER)
    try:
        return _Row(_checked(line, json.loads(line.text)))
    except (ValueError, RecursionError):
        if not line.complete and header <= 0:
            return _Row(None, cut=True)
    try:
        return _Row(_checked(line, json.loads(line.text[header:])), cut=True)
    except (ValueError, RecursionError):
        raise line.error("not valid JSON", hint=_HINT) from None


def _checked(line: Line, row: Any) -> dict[str, Any]:
    keys = {"treeopt_recorded"} if isinstance(row, dict) and "treeopt_recorded" in row else _KEYS
    if not isinstance(row, dict) or not keys <= row.keys():
        raise line.error("no recorded draft", hint=_HINT)
    return row


_KEYS: Final = {"ranks_to_miss", "document", "drafted", "accepted"}


def _plausible(ranks: Any, document: Any, drafted: Any, accepted: Any) -> bool:
    """Whole numbers, and as many ranks as were accepted, with one more where the draft was wrong somewhere."""
    if not isinstance(ranks, list) or not all(type(n) is int for n in (document, drafted, accepted, *ranks)):
        return False
    long_enough = len(ranks) in (accepted, accepted + 1) and 1 <= len(ranks) <= min(drafted, MAX_DEPTH)
    return long_enough and 0 <= accepted <= drafted and all(-1 <= rank < MAX_RANKS for rank in ranks)
