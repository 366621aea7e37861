"""A trace that is a set of shards: NPZ, Parquet and JSONL files and folders of them, in any order.

A document lies whole in one shard, its rows together. The same document in two shards (a job that ran twice) is counted
once if both say the same and refused if they do not, so that merging shards again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.paths import PathCounter, PathCounts
from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.rules import KNOWN_RULES, RULES
from treeopt.acceptance.shard_files import KINDS, Arrays, conditions_text, read_chunks
from treeopt.acceptance.trace import Trace, TraceFile
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import os_error
from treeopt.files.shipped import file_sha256

DocId = int | str

_ROWS: Final = ("rank", "doc_id", "pos")


@dataclass(frozen=True)
class TraceSet:
    """The shards of one trace; their order changes nothing.

    Args:
        files: one shard each, `.npz`, `.parquet` or `.jsonl`.
    """

    files: tuple[Path, ...]

    @classmethod
    def find(cls, *places: Path) -> TraceSet:
        """The shards at these places, each a file or a folder of files.

        Raises:
            InputError: a place that does not exist, or none in which there is a shard.
        """
        found = [file for place in places for file in _shards_at(place)]
        if not found:
            raise InputError(f"{', '.join(map(str, places))}: no shards there", hint=f"give {_kinds()} files")
        return cls(tuple(dict.fromkeys(found)))

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
        for file in self.files:
            before = 0
            for block in _whole_documents(read_chunks(file, (*_ROWS, "topk_prob") if confidence else _ROWS)):
                trace = _checked(file, block, before)
                before += len(trace)
                new = known.add(file, trace)
                if new.all():
                    yield trace
                elif new.any():
                    yield trace.select(new)
        if known.empty:
            raise EvidenceError("the trace is empty", keys=(), hint="record at least one position")

    def count(self) -> PathCounts:
        """The trie of rank paths over all positions, in memory that does not grow with their number.

        Raises:
            FileFormatError: see `blocks`.
            EvidenceError: no recorded rank was ever right.
        """
        return self._profiled[0]

    def documents(self) -> int:
        """How many documents there are."""
        return self._profiled[1]

    def load(self, *, confidence: bool = False) -> Trace:
        """The whole trace in memory, documents by their numbers.

        Raises:
            FileFormatError: see `blocks`.
        """
        blocks = list(self.blocks(confidence=confidence))
        doc_id = np.concatenate([block.doc_id for block in blocks])
        order = np.argsort(doc_id, kind="stable")

        def joined(arrays: Iterable[npt.NDArray[Any] | None]) -> Any:
            return np.concatenate([array for array in arrays if array is not None])[order]

        return Trace(
            rank=joined(block.rank for block in blocks),
            doc_id=doc_id[order],
            pos=joined(block.pos for block in blocks),
            topk_prob=joined(block.topk_prob for block in blocks) if confidence else None,
        )

    def conditions(self) -> Conditions:
        """What the shards say they were measured under.

        Raises:
            InputError: they do not say the same.
        """
        found = {file: read_conditions(file) for file in self.files}
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

    def sha256(self) -> str:
        """Hash of the set of files, in whatever order they are given."""
        return hashlib.sha256("\n".join(sorted(file_sha256(file) for file in self.files)).encode()).hexdigest()

    def profile(self, *, name: str) -> RankProfile:
        """The evidence of the whole set, counted in bounded memory.

        Raises:
            InputError: see `blocks` and `conditions`.
        """
        conditions, (counts, documents) = self.conditions(), self._profiled
        return RankProfile(
            name=name,
            evidence=counts,
            conditions=conditions,
            sha256=self.sha256(),
            documents=documents,
            trace=self,
        )

    @cached_property
    def _profiled(self) -> tuple[PathCounts, int]:
        blocks = self.blocks()
        first = next(blocks)
        counter, documents = PathCounter(first.depth), 0
        for block in chain([first], blocks):
            counter.add(block.rank.astype(np.int64))
            documents += block.documents
        return counter.result(), documents


def open_trace(path: Path) -> TraceFile | TraceSet:
    """A trace by its path: an NPZ file, or a Parquet or JSONL file or a folder of shards."""
    return TraceFile(path) if path.suffix == ".npz" and not path.is_dir() else TraceSet.find(path)


class _Documents:
    """Which documents were seen, where, and a digest of what they said."""

    def __init__(self) -> None:
        self._seen: dict[DocId, tuple[Path, bytes]] = {}
        self._first: tuple[Path, int, str] | None = None

    @property
    def empty(self) -> bool:
        """Whether none was seen."""
        return not self._seen

    def add(self, file: Path, trace: Trace) -> npt.NDArray[np.bool_]:
        """`[documents]` which of a block's documents are new, in the order of their numbers in the block."""
        self._check_alike(file, trace)
        new = np.ones(trace.documents, dtype=np.bool_)
        for start, end in zip(trace.bounds[:-1].tolist(), trace.bounds[1:].tolist(), strict=True):
            doc_id: DocId = trace.doc_id[start].item()
            rows = np.column_stack([trace.pos[start:end], trace.rank[start:end]]).astype(np.int64)
            digest = hashlib.blake2b(rows.tobytes(), digest_size=16).digest()
            if doc_id in self._seen:
                self._check_same(file, doc_id, digest)
                new[trace.document[start]] = False
            else:
                self._seen[doc_id] = (file, digest)
        return new

    def _check_same(self, file: Path, doc_id: DocId, digest: bytes) -> None:
        where, said = self._seen[doc_id]
        if where == file:
            raise FileFormatError(f"{file}: document {doc_id} goes on after another one", hint="keep its rows together")
        if said != digest:
            raise FileFormatError(
                f"{file}: document {doc_id} is in {where} too, with other ranks",
                hint="shards share no documents: give each prompt its own doc_id, or leave one shard out",
            )

    def _check_alike(self, file: Path, trace: Trace) -> None:
        kind = "text" if trace.doc_id.dtype.kind in "US" else "numbers"
        self._first = self._first or (file, trace.depth, kind)
        where, depth, other_kind = self._first
        if trace.depth != depth:
            raise FileFormatError(
                f"{file}: records {trace.depth} depths, {where} records {depth}", hint="collect all shards alike"
            )
        if kind != other_kind:
            raise FileFormatError(
                f"{file}: doc_id is {kind}, in {where} {other_kind}", hint="name documents in one way"
            )


def _shards_at(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(file for file in place.iterdir() if file.suffix in KINDS and not file.name.startswith("."))
    if not place.exists():
        raise os_error(FileNotFoundError(), place, what="trace", verb="read")
    if place.suffix not in KINDS:
        raise InputError(f"{place}: not a trace by its name", hint=f"give {_kinds()} files, or a folder of them")
    return [place]


def _kinds() -> str:
    return ", ".join(KINDS)


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


def _checked(file: Path, arrays: Arrays, before: int) -> Trace:
    try:
        return Trace(**arrays)
    except EvidenceError as error:
        since = f" (rows counted from row {before} on)" if before else ""
        raise FileFormatError(f"{file}: {error}{since}", hint=error.hint) from None


def read_conditions(file: Path) -> Conditions:
    """What a shard says it was measured under; all positions where it says nothing.

    Raises:
        FileFormatError: it cannot be read, or names a rule that there is none of.
    """
    try:
        text = conditions_text(file)
        found = Conditions(**json.loads(text)) if text else Conditions(sampling="all-positions")
    except (ValueError, TypeError):
        raise FileFormatError(f"{file}: its conditions cannot be read", hint="collect it anew") from None
    if found.rule is not None and found.rule not in RULES:
        raise FileFormatError(f"{file}: its conditions name an unknown rule '{found.rule}'", hint=KNOWN_RULES)
    return found
