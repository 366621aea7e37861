"""Acceptance evidence from any file that holds some: a rank profile, a trace, or what an engine wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from treeopt.acceptance.profile import RankFile, RankProfile
from treeopt.acceptance.profile_file import COMMON_KEYS, read_conditions, read_profile
from treeopt.acceptance.shard_files import trace_format
from treeopt.acceptance.shards import TraceFiles
from treeopt.acceptance.trace import Trace
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import Document
from treeopt.files.evidence_lines import SourceFile
from treeopt.files.shipped import TRACE_SUFFIXES
from treeopt.files.typed import check_format

_HEAD_BYTES = 4096


def load_profile(place: Path | SourceFile, *, keep: bool = False, confidence: bool = False) -> RankProfile:
    """Read a rank profile (YAML, JSON), a trace (NPZ, Parquet, JSONL, or a folder of shards) or an engine's metrics.

    The file is opened and decoded once: with `keep` the trace stays in memory beside its counts, with `confidence` the
    drafter's probabilities too, where they were recorded.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it holds no evidence, or its numbers contradict each other (with the line).
    """
    file = place if isinstance(place, SourceFile) else SourceFile(place, what="rank profile")
    if file.path.is_dir() and _is_recorded(file):
        return _imported(file)
    if is_trace(file):
        return TraceFiles.find(file).profile(name=file.path.stem, keep=keep, confidence=confidence)
    if _is_engines(file):
        return _imported(file)
    document = file.document()
    if isinstance(document.value, dict) and "trace" in document.value:
        return _with_trace(document, file.path.parent, keep=keep, confidence=confidence)
    return read_profile(document)


def read_trace(path: Path, *, confidence: bool = False) -> Trace:
    """A whole trace in memory: an NPZ, Parquet or JSONL file, or a folder of shards.

    Args:
        confidence: with the drafter's probabilities, most of a file, where they were recorded.

    Raises:
        InputError: there is none, or it cannot be read, or contradicts itself.
    """
    return TraceFiles.find(path).load(confidence=confidence)


def is_trace(file: SourceFile) -> bool:
    """Whether a file (or folder) holds a trace, by its content or else by its ending."""
    return file.path.is_dir() or trace_format(file) is not None or file.path.suffix in set(TRACE_SUFFIXES) - {".jsonl"}


def is_profile(file: SourceFile) -> bool:
    """Whether a file says of itself that it is a rank profile."""
    return b"treeopt.ranks/" in next(file.chunks(), b"")[:_HEAD_BYTES]


def _is_engines(file: SourceFile) -> bool:
    if b"treeopt." in next(file.chunks(), b"")[:_HEAD_BYTES]:
        return False
    from treeopt.acceptance.importers.detection import detected  # thirty files that a profile does not need

    return detected(file) is not None


def _is_recorded(folder: SourceFile) -> bool:
    from treeopt.acceptance.importers.recorded import recorded_shards

    return bool(recorded_shards(folder))


def _imported(file: SourceFile) -> RankProfile:
    from treeopt.acceptance.importers import read_evidence

    imported = read_evidence([file])
    names = [profile.name for profile in imported.profiles]
    if not names:
        why = next(map(str, (*imported.unplanned, *imported.warnings)), "it holds no draft")
        raise InputError(f"{file.name}: nothing in it can be planned from", hint=why)
    if len(names) > 1:
        raise InputError(
            f"{file.name} holds {len(names)} sources: {', '.join(names)}",
            hint=f"choose one: treeopt ranks import {file.path} --source {names[0]} --out ranks.yaml",
        )
    found = imported.profiles[0]
    return replace(found, note="; ".join([found.note, *imported.warnings]))


def _with_trace(document: Document, folder: Path, *, keep: bool, confidence: bool) -> RankProfile:
    """A profile whose counts are those of the trace that it names, beside it."""
    root = document.root
    check_format(root, RankFile.FORMAT, what="rank profile")
    root.only(*COMMON_KEYS, "trace")
    named = root.get("trace")
    try:
        files = TraceFiles.find(folder / named.text())
    except FileFormatError:
        raise
    except InputError as error:
        raise named.error(str(error), hint=error.hint) from None
    measured = files.profile(name="", keep=keep, confidence=confidence)
    return replace(
        measured,
        name=root.get("name").text(),
        conditions=read_conditions(root.get("conditions", {})),
        note=root.get("note", "").text(),
        source=root.get("source", "").text(),
    )
