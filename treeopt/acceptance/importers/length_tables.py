"""Tables of mean accepted lengths: by number of drafts in YAML or JSON, or as a column of a table that was pasted.

Formats: SemiAnalysisAI/InferenceX, golden_al_distribution/*.yaml (model, mode, {K: mean with bonus token}; `_metadata`
names the drafter, the first comment the sampling), and whatever nests such mappings; Markdown tables, CSV and tables
with tabs or bars, by the words of their header: Spec-Bench's leaderboard, ik_llama.cpp's bench, people's own sweeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from treeopt.acceptance.importers.counters import DraftCounts
from treeopt.acceptance.importers.reading import SERVED, ImportJob, Reading
from treeopt.acceptance.importers.records import Report, side_by_side
from treeopt.acceptance.position import MAX_DRAFT_TOKENS
from treeopt.acceptance.profile import Conditions
from treeopt.files.documents import Document, Field, parse_document
from treeopt.files.evidence_lines import Line, LocatedDocument, Printed, require
from treeopt.files.rows import table_rows

_RUNS: Final = "every K was a run of its own: differences between neighbours are no per-position acceptance"
K_TO_LENGTH: Final = re.compile(r"""(?:^|[{,\n])\s*["']?\d{1,3}["']?\s*:\s*[1-9]\d?(?:\.\d{1,6})?\s*(?=[,}\n#]|$)""")
_LENGTH: Final = re.compile(
    r"(?:(?:mean|average|avg) )?(?:accept\w*|acc|a) (?:length|len)\b.*|(?:mean )?accepted tokens.*|al|tau.*|mat|\u03c4"
)
_NAME: Final = (
    r"[ \t*#`\"]*(?:(?:mean|average|avg)[ _.]*)?(?:(?:accept\w*|acc|a)[ _.]*(?:length|len)\b"
    r"|#?mean accepted tokens|al|tau|mat|\u03c4)[^|,;\t\n\d]{0,30}"
)
LENGTH_COLUMN: Final = re.compile(rf"[|,;\t]{_NAME}(?=[|,;\t\n\r]|$)|^{_NAME}[|,;\t]", re.IGNORECASE | re.MULTILINE)
_COLUMNS: Final = {
    "length": _LENGTH,
    "draft_tokens": re.compile(r"k|(?:num )?spec(?:ulative)? tokens|draft tokens|gamma|draft len.*"),
    "num_steps": re.compile(r"(?:num )?steps|speculative num steps"),
    "topk": re.compile(r"(?:eagle )?top ?k"),
    "num_draft_tokens": re.compile(r"num draft tokens|verify tokens"),
}
_MEASURED: Final = re.compile(r"tok|throughput|latency|time|ms|speed|rate|ttft|tpot|itl|runs|metric|%|overall|accuracy")
_CELL: Final = re.compile(r"^[*_`\s]*(\d{1,15}(?:\.\d{1,12})?)(?!\s*x\b)(?:\s*(?:/|\u00b1|\+-).*)?[*_`\s]*$")


def read_k_table(job: ImportJob) -> Reading:
    """Mean evidence per table and K, from mappings of K to a mean, however deep they are nested."""
    document = _document(job)
    reading = side_by_side(job, _tables(document, document.root), "table from K to mean accepted length")
    return reading + Reading(warnings=(_RUNS,))


def read_length_table(job: ImportJob) -> Reading:
    """Mean evidence per row with an accepted length; rows of trees, and those that do not tell K, are listed."""
    return side_by_side(job, _rows(job), "column of accepted lengths")


def _document(job: ImportJob) -> Document:
    found = parse_document(job.file.text(), name=job.file.name, what="table of acceptance lengths")
    return LocatedDocument(name=found.name, text=found.text, value=found.value)


def _tables(document: Document, field: Field) -> Iterator[Report]:
    if not isinstance(field.value, dict) or not field.value:
        raise field.error("expected a table from K to mean accepted length", hint="write {1: 1.78, 2: 2.38}")
    if all(_is_k(key) for key in field.value):
        for key in field.value:
            yield Report(counts=(_mean_of(document, field, key),))
        return
    if any(_is_k(key) for key in field.value):
        odd = next(key for key in field.value if not _is_k(key))
        raise field.error(f"'{odd}': the key is no number of drafts", hint="keys are num_speculative_tokens")
    for key, value in field.value.items():
        if not str(key).startswith("_"):
            yield from _tables(document, Field(document=document, keys=(*field.keys, str(key)), value=value))


def _is_k(key: object) -> bool:
    return (isinstance(key, int) and not isinstance(key, bool)) or (isinstance(key, str) and key.isdecimal())


def _mean_of(document: Document, table: Field, key: int | str) -> DraftCounts:
    field = Field(document=document, keys=(*table.keys, str(key)), value=table.value[key])
    K = int(key) if len(str(key)) < 5 else MAX_DRAFT_TOKENS + 1
    if not 1 <= K <= MAX_DRAFT_TOKENS:
        raise field.error("the key is no number of drafts", hint="keys are num_speculative_tokens")
    mean = field.number(low=1, high=K + 1)
    label = " ".join([*(str(name) for name in table.keys[1:]), f"k{K}"])
    conditions = _conditions(document, str(table.keys[0]) if table.keys else None)
    return DraftCounts(place=field, length=Printed(mean, 0.0), draft_tokens=K, label=label, conditions=conditions)


def _conditions(document: Document, model: str | None) -> Conditions:
    comment = document.text[:1000]
    dataset = re.search(r"^#.*\bdataset: ([\w-]{1,40})", comment, re.MULTILINE)
    temperature = re.search(r"^#.*\btemperature: (\d{1,2}(?:\.\d{1,6})?)", comment, re.MULTILINE)
    metadata = document.value.get("_metadata") or {}
    drafter = metadata.get("draft-model") if isinstance(metadata, dict) else None
    return replace(
        SERVED,
        target=model,
        drafter=drafter if isinstance(drafter, str) else None,
        temperature=float(temperature[1]) if temperature else None,
        dataset=dataset[1] if dataset else None,
    )


class _Header(NamedTuple):
    """Where the columns that count stand, and those whose words tell rows apart."""

    columns: dict[str, int]
    labels: tuple[int, ...]

    @classmethod
    def of(cls, cells: Sequence[str]) -> _Header | None:
        bare = [re.sub(r"\([^)]*\)|mean/std", "", cell.lower()) for cell in cells]
        names = [re.sub(r"[\s_\-.*#`]+", " ", cell).strip() for cell in bare]
        columns = {}
        for name, pattern in _COLUMNS.items():
            at = next((i for i, text in enumerate(names) if pattern.fullmatch(text)), None)
            if at is not None:
                columns[name] = at
        labels = tuple(i for i, n in enumerate(names) if i not in columns.values() and not _MEASURED.search(n))
        return cls(columns, labels) if "length" in columns else None


def _rows(job: ImportJob) -> Iterator[Report]:
    header, found = None, False
    for line, cells in table_rows(job.file):
        new = _Header.of(cells)
        if new is not None:
            header = new
        elif header is not None and (counts := _row(line, cells, header)) is not None:
            found = True
            yield Report(counts=(counts,))
    require(found, job.file, "row with an accepted length")


def _row(line: Line, cells: Sequence[str], header: _Header) -> DraftCounts | None:
    """One row as a report; None for plain decoding, and for what is no row of the table."""
    numbers = {name: _number(cells[at]) for name, at in header.columns.items() if at < len(cells)}
    length, K = numbers.get("length"), numbers.get("draft_tokens") or numbers.get("num_steps")
    if length is None or (K is not None and K.value == 0):
        return None
    if length.value < 1.0:
        raise line.error(f"an accepted length of {length.value:g}", hint="it counts the bonus token: 1 or more")
    topk = numbers.get("topk")
    is_chain = topk is None or topk.value == 1
    words = [cells[at].strip("*`_ ") for at in header.labels if at < len(cells)]
    label = " ".join([*(w for w in words if w and not w.startswith("-"))][:4] + ([f"k{K.value:g}"] if K else []))
    return DraftCounts(
        place=line,
        length=length,
        draft_tokens=int(K.value) if K is not None and is_chain else None,
        topk=None if topk is None else int(topk.value),
        label=label,
    )


def _number(cell: str) -> Printed | None:
    found = _CELL.match(cell)
    return None if found is None else Printed.of(found[1])
