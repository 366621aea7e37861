"""Which kind of evidence a file is, told from its contents in bounded memory."""

from __future__ import annotations

import itertools
import re
import zipfile
from typing import Final

from treeopt.acceptance.errors import SpeculationOffError
from treeopt.acceptance.importers.kinds import KINDS, ImportKind
from treeopt.acceptance.importers.length_tables import K_TO_LENGTH, LENGTH_COLUMN
from treeopt.acceptance.importers.reading import ImportJob, Reading
from treeopt.acceptance.importers.summary import MEAN_PHRASE
from treeopt.errors import InputError
from treeopt.files.evidence_lines import SourceFile

_HEAD_BYTES: Final = 4096

# Files that people have at hand and that look like evidence, with what they are instead.
_OTHERS: Final = {
    b'"acceptance_rate_per_pos"': "a configuration for vLLM: its rates were typed in, not measured by this file",
    b"mc_sim_7b_63": "a list of draft trees, not a measurement",
    b"--speculative-config": "a description of options, not a measurement",
}

_OWN_FORMAT: Final = re.compile(rb"""^[\s{]*["']?format["']?:\s*["']?(treeopt\.[\w-]+/\d+)""", re.MULTILINE)
_OWN_EVIDENCE: Final = b"treeopt.ranks/"


def _off(name: str, counters: str) -> ImportKind:
    """What an engine writes where it was started without speculation."""

    def read(job: ImportJob) -> Reading:
        raise SpeculationOffError(
            f"{job.file.name}: {name} without {counters}: speculation is not on",
            hint=f"start the engine with a drafter; give the whole file, if {counters} were filtered out of it",
        )

    return ImportKind(name=f"{name} without speculation", what=name, words=(), read=read)


# By lines that stand in them whether the engine drafts or not; none is a kind to ask for.
_OFF: Final = (
    (re.compile(rb"^vllm:\w+[{ ]", re.MULTILINE), _off("vLLM metrics", "spec_decode counters")),
    (re.compile(rb"Decode batch[.,][^\n]{0,40}#running-req:"), _off("SGLang log", "accept lengths")),
)


def detect(file: SourceFile) -> ImportKind:
    """The kind whose words the file contains.

    Raises:
        InputError: see `detected`, or it holds no evidence that is known.
    """
    found = detected(file)
    if found is None:
        raise _unknown(file, next(file.chunks()))
    return found


def detected(file: SourceFile) -> ImportKind | None:
    """The kind whose words the file contains, if there is one.

    Raises:
        InputError: the file cannot be read, is empty, compressed, binary, or a document of treeopt's own.
    """
    chunks = file.chunks()
    head = next(chunks, b"")
    if not head:
        raise file.error("the file is empty", hint="give the file that the engine wrote")
    if binary := _binary_kind(file, head):
        return binary
    _refuse_own(file, head)
    window, by_phrase, off = b"", None, None
    for chunk in itertools.chain([head], chunks):
        # Words may straddle two chunks, and a kind that comes first may have its words just behind another's.
        window = window[-_HEAD_BYTES:] + chunk
        if _kind_of(window) and (found := _kind_of(window + next(chunks, b""))):
            return found
        by_phrase = by_phrase or _told_by_phrase(window.decode(errors="replace"))
        off = off or next((kind for line, kind in _OFF if line.search(window)), None)
    return by_phrase or off


def _refuse_own(file: SourceFile, head: bytes) -> None:
    """A plan states lengths too, and they are answers: taken as measured they would confirm themselves."""
    found = _OWN_FORMAT.search(head[:_HEAD_BYTES])
    if found is None:
        return
    if found[1].startswith(_OWN_EVIDENCE):
        raise file.error("a treeopt file already: use it as it is", hint=f"--ranks {file.path}")
    raise file.error(
        f"this is a {found[1].decode()}, no measurement of acceptance",
        hint="give what an engine or a benchmark wrote: a log, its /metrics, a report",
    )


def _told_by_phrase(text: str) -> ImportKind | None:
    """What people write: a table with the column, a mapping from K to a mean, or a sentence with one."""
    if LENGTH_COLUMN.search(text):
        return KINDS["table"]
    if MEAN_PHRASE.search(text):
        return KINDS["mean"]
    return KINDS["golden-al"] if len(K_TO_LENGTH.findall(text)) > 1 else None


def _kind_of(window: bytes) -> ImportKind | None:
    return next((kind for kind in KINDS.values() if any(word in window for word in kind.words)), None)


def _binary_kind(file: SourceFile, head: bytes) -> ImportKind | None:
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(file)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return KINDS["medusa-pt"]
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        raise file.error("the file is compressed", hint="uncompress it first")
    if b"\0" in head[:_HEAD_BYTES]:
        raise file.error("not a text file", hint="a log in UTF-16 (PowerShell's `>`) must be saved as UTF-8 first")
    return None


def _zip_kind(file: SourceFile) -> ImportKind:
    try:
        with zipfile.ZipFile(file.opened.stream()) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise file.error("a damaged zip file", hint="copy it again") from None
    if any(name.endswith(".npy") for name in names):
        raise file.error("a trace (NPZ) is no import: it is used as it is", hint=f"--ranks {file.path}")
    if not any(name.endswith("data.pkl") for name in names):
        raise file.error("a zip file without evidence", hint="unpack it first")
    return KINDS["medusa-pt"]


def _unknown(file: SourceFile, head: bytes) -> InputError:
    what = next((what for word, what in _OTHERS.items() if word in head), "nothing in it is known as evidence")
    kinds = "; ".join(f"{kind.name} ({kind.what})" for kind in KINDS.values())
    return file.error(what, hint=f"looked for: {kinds}. --kind forces one")
