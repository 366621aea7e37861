"""InferenceX's golden acceptance lengths: YAML tables of the mean accepted length by number of drafts.

Format: SemiAnalysisAI/InferenceX, golden_al_distribution/*.yaml: model, then mode, then {K: mean with bonus token};
`_metadata` names the drafter, the first comment the sampling.
"""

from __future__ import annotations

import re

from treeopt.acceptance.importers.reading import ImportedSource, ImportJob, Reading, Tally
from treeopt.acceptance.position import MAX_DRAFT_TOKENS, MeanLength
from treeopt.acceptance.profile import Conditions
from treeopt.errors import FileFormatError
from treeopt.files.documents import Document, Field, parse_document
from treeopt.files.evidence_lines import LocatedDocument, require

_RUNS = "every K was a run of its own: differences between neighbours are no per-position acceptance"


def read_golden_al(job: ImportJob) -> Reading:
    """Mean evidence per model, mode and K."""
    document = _document(job)
    sources = []
    for model in document.root.mapping():
        if not model.startswith("_"):
            for mode in document.root.get(model).mapping():
                sources += _sources(job, document, model, document.root.get(model).get(mode))
    require(bool(sources), job.file, "table from K to mean accepted length")
    return Reading(sources=tuple(sources), warnings=(_RUNS,))


def _document(job: ImportJob) -> Document:
    try:
        found = parse_document(job.file.text(), name=str(job.file.path), what="table of acceptance lengths")
    except RecursionError:
        raise FileFormatError(f"{job.file.path}: nested too deeply", hint="give the table as published") from None
    return LocatedDocument(name=found.name, text=found.text, value=found.value)


def _sources(job: ImportJob, document: Document, model: str, mode: Field) -> list[ImportedSource]:
    if not isinstance(mode.value, dict):
        raise mode.error("expected a table from K to mean accepted length", hint="write {1: 1.78, 2: 2.38}")
    sources = []
    for key, value in mode.value.items():
        field = Field(document=document, keys=(*mode.keys, str(key)), value=value)
        if isinstance(key, bool) or not isinstance(key, int) or not 1 <= key <= MAX_DRAFT_TOKENS:
            raise field.error("the key is no number of drafts", hint="keys are num_speculative_tokens")
        mean = field.number(low=1, high=key + 1)
        source = job.source(
            MeanLength(mean_accepted_length=mean, draft_tokens=key),
            label=f"{mode.keys[-1]} k{key}",
            tally=Tally(draft_tokens=key, mean_accepted_length=mean),
            conditions=_conditions(document, model),
        )
        sources.append(source)
    return sources


def _conditions(document: Document, model: str) -> Conditions:
    comment = document.text[:1000]
    dataset = re.search(r"^#.*\bdataset: ([\w-]{1,40})", comment, re.MULTILINE)
    temperature = re.search(r"^#.*\btemperature: (\d{1,2}(?:\.\d{1,6})?)", comment, re.MULTILINE)
    metadata = document.value.get("_metadata") or {}
    drafter = metadata.get("draft-model") if isinstance(metadata, dict) else None
    return Conditions(
        target=model,
        drafter=drafter if isinstance(drafter, str) else None,
        temperature=float(temperature[1]) if temperature else None,
        dataset=dataset[1] if dataset else None,
        sampling="draft-starts",
    )
