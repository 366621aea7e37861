"""A trace on disk: one file, or shards of it as NPZ, Parquet and JSONL files and folders of them, in any order.

A document lies whole in one shard, its rows together. The same document in two shards (a job that ran twice) is counted
once if both say the same and refused if they do not, so that merging shards again changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.draft_lengths import DraftLengths, recorded_lengths
from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.path_trie import PathCounter
from treeopt.acceptance.paths import PathCounts
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.profile_file import read_conditions
from treeopt.acceptance.prompt_lookup import drafts_at_times
from treeopt.acceptance.shard_files import Arrays, ShardFile, trace_format
from treeopt.acceptance.trace import Trace
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import os_error, parse_document
from treeopt.files.evidence_lines import SourceFile
from treeopt.files.shipped import TRACE_SUFFIXES

DocId = int | str

_ROWS: Final = ("rank", "doc_id", "pos")
_CONFIDENCE: Final = "topk_prob"


class Counted(NamedTuple):
    """Counted rank paths, and how many documents they came from; 0 if the trace does not say."""

    counts: PathCounts
    documents: int


@dataclass(frozen=True)
class TraceFiles:
    """The files of one trace; their order changes nothing.

    Args:
        shards: one file, or several of which each holds some documents.
    """

    shards: tuple[ShardFile, ...]

    @classmethod
    def find(cls, *places: Path | SourceFile) -> TraceFiles:
        """The shards at these places, each a file or a folder of files.

        Raises:
            InputError: a place that does not exist, or none in which there is a shard.
        """
        found = {file.path: file for place in places for file in _shards_at(place)}
        if not found:
            raise InputError(f"{', '.join(map(str, places))}: no shards there", hint=f"give {_kinds()} files")
        return cls(tuple(map(ShardFile, found.values())))

    def blocks(self, *, confidence: bool = False) -> Iterator[Trace]:
        """The trace as blocks of whole documents, each document once; one block is in memory at a time.

        What grows is a note per document, of some 200 bytes.

        Args:
            confidence: read the drafter's probabilities too.

        Raises:
            FileFormatError: a shard is no trace, or contradicts itself or another shard.
            EvidenceError: there are no rows.
        """
        known = _Documents()
        for shard in self.shards:
            before = 0
            for block in _whole_documents(shard.chunks((*_ROWS, _CONFIDENCE) if confidence else _ROWS)):
                trace = _checked(shard, block, before)
                before += len(trace)
                new = known.add(shard, trace)
                if new.all():
                    yield trace
                elif new.any():
                    yield trace.select(new)
        if known.empty:
            raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")

    def load(self, *, confidence: bool = False) -> Trace:
        """The whole trace in memory, documents by their numbers; with the drafter's probabilities if all shards can.

        Args:
            confidence: read the drafter's probabilities too, most of a file, where they were recorded.

        Raises:
            FileFormatError: see `blocks`.
        """
        names = (*_ROWS, _CONFIDENCE) if confidence and all(s.has(_CONFIDENCE) for s in self.shards) else _ROWS
        if len(self.shards) == 1:
            return _checked(self.shards[0], self.shards[0].read(names), 0)
        blocks = list(self.blocks(confidence=_CONFIDENCE in names))
        doc_id = np.concatenate([block.doc_id for block in blocks])
        order = np.argsort(doc_id, kind="stable")

        def joined(arrays: Iterable[npt.NDArray[Any] | None]) -> Any:
            return np.concatenate([array for array in arrays if array is not None])[order]

        return Trace(
            rank=joined(block.rank for block in blocks),
            doc_id=doc_id[order],
            pos=joined(block.pos for block in blocks),
            topk_prob=joined(block.topk_prob for block in blocks) if _CONFIDENCE in names else None,
        )

    def count(self, loaded: Trace | None = None) -> Counted:
        """The trie of rank paths over all positions, in memory that does not grow with their number.

        Args:
            loaded: the same trace, if it is in memory.

        Raises:
            FileFormatError: see `blocks`, or no recorded rank was ever right.
        """
        try:
            return self._counted() if loaded is None else Counted(loaded.count(), loaded.documents)
        except EvidenceError as error:
            raise FileFormatError(f"{self.name}: {error}", hint=error.hint) from None

    def _counted(self) -> Counted:
        counter: PathCounter | None = None
        documents = 0
        lone = self.shards[0] if len(self.shards) == 1 else None
        if lone is not None and not lone.has(*_ROWS):
            for chunk in lone.chunks(("rank",)):
                counter = counter or PathCounter(chunk["rank"].shape[1])
                counter.add(chunk["rank"].astype(np.int64))
        else:
            for block in self.blocks():
                counter = counter or PathCounter(block.depth)
                counter.add(block.rank.astype(np.int64))
                documents += block.documents
        if counter is None:
            raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")
        return Counted(counter.result(), documents)

    def conditions(self) -> Conditions:
        """What the shards say they were measured under.

        Raises:
            InputError: they do not say the same.
        """
        found = {shard.file.name: _conditions(shard) for shard in self.shards}
        first, said = next(iter(found.items()))
        other = next((file for file, conditions in found.items() if conditions != said), None)
        if other is not None:
            ours, theirs = asdict(said), asdict(found[other])
            wrong = next(name for name in ours if ours[name] != theirs[name])
            raise InputError(
                f"{other}: {wrong} is {theirs[wrong]}, in {first} it is {ours[wrong]} (None: not stated)",
                hint="shards of one trace are measured alike; to mix traces, merge their profiles",
            )
        return said

    def profile(self, *, name: str, keep: bool = False, confidence: bool = False) -> RankProfile:
        """The evidence of the whole trace: counted in bounded memory, or with `keep` loaded once and kept.

        A trace without documents can be counted, not kept: nothing can be replayed on it.

        Raises:
            InputError: see `blocks` and `conditions`.
        """
        conditions = self.conditions()
        trace = self.load(confidence=confidence) if keep and all(s.has(*_ROWS) for s in self.shards) else None
        counts, documents = self.count(trace)
        lengths = self._lengths(trace) if drafts_at_times(conditions.drafter) else None
        return RankProfile(
            name=name,
            evidence=counts,
            conditions=conditions,
            sha256=self.sha256,
            documents=documents,
            trace=trace,
            files=tuple(shard.file.path for shard in self.shards),
            lengths=lengths,
        )

    def _lengths(self, trace: Trace | None) -> DraftLengths | None:
        if trace is None or trace.topk_prob is None:
            if not all(s.has(*_ROWS, _CONFIDENCE) for s in self.shards):
                return None
            trace = self.load(confidence=True)
        return recorded_lengths(trace)

    @cached_property
    def sha256(self) -> str:
        """Hash of an NPZ file, or of the set of files in whatever order they are given."""
        if [shard.format for shard in self.shards] == ["npz"]:
            return self.shards[0].sha256
        return hashlib.sha256("\n".join(sorted(shard.sha256 for shard in self.shards)).encode()).hexdigest()

    @property
    def name(self) -> str:
        """What messages call it."""
        return ", ".join(shard.file.name for shard in self.shards[:3]) + (", ..." if len(self.shards) > 3 else "")


class _Documents:
    """Which documents were seen, where, and a digest of what they said."""

    def __init__(self) -> None:
        self._seen: dict[DocId, tuple[ShardFile, bytes]] = {}
        self._first: tuple[ShardFile, int, str] | None = None

    @property
    def empty(self) -> bool:
        """Whether none was seen."""
        return not self._seen

    def add(self, shard: ShardFile, trace: Trace) -> npt.NDArray[np.bool_]:
        """`[documents]` which of a block's documents are new, in the order of their numbers in the block."""
        self._check_alike(shard, trace)
        new = np.ones(trace.documents, dtype=np.bool_)
        for start, end in zip(trace.bounds[:-1].tolist(), trace.bounds[1:].tolist(), strict=True):
            doc_id: DocId = trace.doc_id[start].item()
            rows = np.column_stack([trace.pos[start:end], trace.rank[start:end]]).astype(np.int64)
            digest = hashlib.blake2b(rows.tobytes(), digest_size=16).digest()
            if doc_id in self._seen:
                self._check_same(shard, doc_id, digest)
                new[trace.document[start]] = False
            else:
                self._seen[doc_id] = (shard, digest)
        return new

    def _check_same(self, shard: ShardFile, doc_id: DocId, digest: bytes) -> None:
        where, said = self._seen[doc_id]
        if where == shard:
            raise shard.error(f"document {doc_id} goes on after another one", hint="keep its rows together")
        if said != digest:
            raise shard.error(
                f"document {doc_id} is in {where.file.name} too, with other ranks",
                hint="shards share no documents: give each prompt its own doc_id, or leave one shard out",
            )

    def _check_alike(self, shard: ShardFile, trace: Trace) -> None:
        kind = "text" if trace.doc_id.dtype.kind in "US" else "numbers"
        self._first = self._first or (shard, trace.depth, kind)
        where, depth, other_kind = self._first
        if trace.depth != depth:
            raise shard.error(
                f"records {trace.depth} depths, {where.file.name} records {depth}",
                hint="collect all shards alike",
            )
        if kind != other_kind:
            raise shard.error(
                f"doc_id is {kind}, in {where.file.name} {other_kind}",
                hint="name documents in one way",
            )


def _shards_at(place: Path | SourceFile) -> list[SourceFile]:
    file = place if isinstance(place, SourceFile) else SourceFile(place, what="trace")
    if file.path.is_dir():
        files = [f for f in file.path.iterdir() if f.suffix in TRACE_SUFFIXES and not f.name.startswith(".")]
        return [SourceFile(f, what="trace") for f in sorted(files)]
    if str(file.path) != "-" and not file.path.exists():
        raise os_error(FileNotFoundError(), file.path, what="trace", verb="read")
    if file.path.suffix not in TRACE_SUFFIXES and trace_format(file) is None:
        raise InputError(f"{file.name}: not a trace", hint=f"give {_kinds()} files, or a folder of them")
    return [file]


def _kinds() -> str:
    return ", ".join(TRACE_SUFFIXES)


def _whole_documents(chunks: Iterable[Arrays]) -> Iterator[Arrays]:
    """Cut chunks anew, before the last document of each: it may go on in the next one."""
    held: Arrays = {}
    for chunk in chunks:
        if held:
            chunk = {name: np.concatenate([held[name], array]) for name, array in chunk.items()}
        doc_id = chunk["doc_id"]
        cut = int(np.flatnonzero(doc_id[1:] != doc_id[:-1])[-1]) + 1 if (doc_id != doc_id[-1]).any() else 0
        held = {name: array[cut:] for name, array in chunk.items()}
        if cut:
            yield {name: array[:cut] for name, array in chunk.items()}
    if held:
        yield held


def _checked(shard: ShardFile, arrays: Arrays, before: int) -> Trace:
    try:
        return Trace(**arrays)
    except EvidenceError as error:
        since = f" (rows counted from row {before} on)" if before else ""
        raise shard.error(f"{error}{since}", hint=error.hint) from None


def _conditions(shard: ShardFile) -> Conditions:
    text = shard.conditions_text
    if not text:
        return Conditions(sampling="all-positions")
    document = parse_document(text, name=f"{shard.file.name}, its conditions", what="trace with readable conditions")
    return read_conditions(document.root)
