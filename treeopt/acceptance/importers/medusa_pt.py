"""Medusa's `*_heads_accuracy.pt`: per head a table of booleans, row = decode position, column r = "rank r was right".

Format: FasterDecoding/Medusa, medusa/eval/heads_accuracy.py (commit 6294228): every sample runs the same number of
steps, head i has steps - i rows of it, and samples are glued together. Rows of one position therefore line up across
heads once the samples are cut apart again, and give JOINT counts of rank paths, which no table of averages has.
"""

from __future__ import annotations

import importlib
import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from treeopt.acceptance.importers.reading import ImportJob, Reading, Tally
from treeopt.acceptance.path_trie import PathCounter
from treeopt.acceptance.paths import MAX_RANKS
from treeopt.acceptance.profile import Conditions
from treeopt.acceptance.table import DepthRanks
from treeopt.arrays import BoolArray, IntArray
from treeopt.errors import InputError
from treeopt.extras import install_command
from treeopt.files.evidence_lines import MAX_DOCUMENT_BYTES, SourceFile

_PLAIN: Final = re.compile(
    r"PROTO|FRAME|MARK|EMPTY_LIST|LIST|APPENDS?|NEWTRUE|NEWFALSE|(BIN)?INT[12]?|MEMOIZE|(LONG_)?(BIN)?(PUT|GET)|STOP"
)
_OLD_TORCH: Final = "LONG1 119547037146038801333356"  # what torch.save wrote before 1.6 begins with
_MAX_HEADS: Final = 64
_HINT: Final = "expected torch.save of a list of boolean tensors [positions, ranks], one per head"
_CONDITIONS: Final = Conditions(temperature=0.0, rule="greedy", sampling="all-positions")


def read_medusa_pt(job: ImportJob) -> Reading:
    """Path evidence if the heads' rows line up; otherwise depth-rank counts."""
    heads = _heads(job.file, _load(job.file))
    samples = _samples([len(head) for head in heads])
    tally = Tally(drafts=len(heads[0]))
    if samples is None:
        counts = np.array([head.sum(axis=0) for head in heads], dtype=np.float64)
        reached = np.array([len(head) for head in heads], dtype=np.float64)
        table = DepthRanks.from_counts(reached=reached, counts=counts)
        source = job.source(table, tally=tally, conditions=_CONDITIONS, note="each head was measured alone")
        lengths = ", ".join(str(len(head)) for head in heads)
        doubt = f"the heads have {lengths} rows, which do not line up: ranks of one position are not known together"
        return Reading(sources=(source,), warnings=(doubt,))
    counter = PathCounter(len(heads))
    counter.add(_aligned(job.file, heads, samples))
    source = job.source(
        counter.result(), tally=tally, conditions=_CONDITIONS, documents=samples if len(heads) > 1 else 0
    )
    return Reading(sources=(source,))


def _samples(rows: Sequence[int]) -> int | None:
    """How many samples were glued together, if rows of steps - i per sample and head explain all lengths."""
    samples = rows[0] - rows[1] if len(rows) > 1 else 1
    if samples < 1 or rows[0] % samples:
        return None
    steps = rows[0] // samples
    return samples if all(n == samples * (steps - i) for i, n in enumerate(rows)) else None


def _aligned(file: SourceFile, heads: Sequence[BoolArray], samples: int) -> IntArray:
    """`[positions, heads]` ranks: -1 where no listed rank was right, -2 past the end of a sample."""
    steps = len(heads[0]) // samples
    ranks = np.full((samples, steps, len(heads)), -2, dtype=np.int64)
    for i, head in enumerate(heads):
        right = head.sum(axis=1)
        if np.any(right > 1):
            row = int(np.argmax(right > 1))
            raise file.error(f"row {row} of head {i} has {right[row]} right ranks", hint="only one rank can be right")
        rank = np.where(right == 1, head.argmax(axis=1), -1)
        ranks[:, : steps - i, i] = rank.reshape(samples, steps - i)
    return ranks.reshape(-1, len(heads))


def _heads(file: SourceFile, value: Any) -> list[BoolArray]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_HEADS:
        raise file.error(f"it holds no list of 1 to {_MAX_HEADS} heads", hint=_HINT)
    heads = [_head(file, i, head) for i, head in enumerate(value)]
    if len({head.shape[1] for head in heads}) != 1:
        raise file.error(f"the heads list {[head.shape[1] for head in heads]} ranks", hint=_HINT)
    return heads


def _head(file: SourceFile, index: int, value: Any) -> BoolArray:
    if isinstance(value, list):
        rows, width = value, len(value[0]) if value and isinstance(value[0], list) else 0
        sane = 1 <= width <= MAX_RANKS and len(rows) * width <= MAX_DOCUMENT_BYTES
        regular = sane and all(isinstance(row, list) and len(row) == width for row in rows)
        if not regular or not all(x in (0, 1) for row in rows for x in row):
            raise file.error(f"head {index} is no table of booleans", hint=_HINT)
        return np.array(rows, dtype=np.bool_)
    array = np.asarray(value)
    if array.ndim != 2 or array.dtype != np.bool_ or not array.shape[0] or not 1 <= array.shape[1] <= MAX_RANKS:
        raise file.error(f"head {index} is {array.dtype} {list(array.shape)}", hint=_HINT)
    return array


def _load(file: SourceFile) -> Any:
    raw = b"".join(_limited(file))
    try:
        pickled = _pickle_of(file, raw)
        foreign = _foreign(pickled)
        if not foreign:
            return pickle.loads(pickled)
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in any way; none of its code has run
        raise file.error(f"not a .pt file that can be read ({type(error).__name__})", hint=_HINT) from None
    if "torch" not in foreign and foreign != _OLD_TORCH:
        raise file.error(f"it holds more than lists of booleans: {foreign[:60]}", hint=_HINT)
    return _load_with_torch(file, raw)


def _foreign(pickled: bytes) -> str:
    """The first instruction that lists of booleans do not need; empty if there is none, so that nothing can be run."""
    for opcode, argument, _ in pickletools.genops(pickled):
        absurd = opcode.name.endswith("PUT") and int(str(argument)) > len(pickled)  # a memo of that size is allocated
        if absurd or not _PLAIN.fullmatch(opcode.name):
            return f"{opcode.name} {argument}"
    return ""


def _limited(file: SourceFile) -> list[bytes]:
    chunks: list[bytes] = []
    for chunk in file.chunks():
        chunks.append(chunk)
        if sum(map(len, chunks)) > MAX_DOCUMENT_BYTES:
            raise file.error(f"larger than {MAX_DOCUMENT_BYTES >> 20} MiB", hint=_HINT)
    return chunks


def _pickle_of(file: SourceFile, raw: bytes) -> bytes:
    if not raw.startswith(b"PK"):
        return raw
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        member = next((info for info in archive.infolist() if info.filename.endswith("data.pkl")), None)
        if member is None or member.file_size > MAX_DOCUMENT_BYTES:
            raise file.error("a zip file without a data.pkl of sane size", hint=_HINT)
        return archive.read(member)


def _load_with_torch(file: SourceFile, raw: bytes) -> Any:
    try:
        torch = importlib.import_module("torch")  # an extra, and only some of these files need it
    except ImportError:
        raise InputError(f"{file.path}: reading tensors needs torch", hint=install_command("gpu")) from None
    try:
        value = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        if not isinstance(value, list):
            return value
        for head in value:  # one value can be shown as a tensor of any size
            if head.numel() * head.element_size() > head.untyped_storage().nbytes():
                raise file.error("a head claims more values than the file holds", hint=_HINT)
        return [head.numpy() for head in value]
    except InputError:
        raise
    except Exception as error:  # torch raises its own zoo on damaged files; weights_only runs none of their code
        raise file.error(f"torch cannot read it: {type(error).__name__}", hint=_HINT) from None
