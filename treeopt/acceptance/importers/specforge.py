"""SpecForge's `bench_eagle3.py` results: per benchmark and triple, the mean accepted length (bonus token counted).

Format: sgl-project/SpecForge, benchmarks/bench_eagle3.py and benchmarker/base.py (commit 1d66672); one JSON value,
although the file is called .jsonl.
"""

from __future__ import annotations

from treeopt.acceptance.importers.reading import Job, Reading
from treeopt.acceptance.importers.triples import triple_reading
from treeopt.acceptance.profile import Conditions
from treeopt.files.documents import Field
from treeopt.files.evidence_lines import count, find_mappings, has, require


def read_specforge(job: Job) -> Reading:
    """Mean evidence per chain that ran; trees are listed, not planned from."""
    reading, rows = Reading(), 0
    for document in job.file.records():
        drafter = document.root.get("model").text() if has(document.root, "model") else None
        for run in find_mappings(document, "metrics"):
            dataset = str(run.keys[0]) if run.keys else None
            label = f"{dataset} b{count(run.get('batch_size', 0))} steps{run.get('steps', None).value}"
            for length in _lengths(run):
                rows += 1
                conditions = Conditions(drafter=drafter, dataset=dataset, sampling="draft-starts")
                reading += triple_reading(job, run, length, label=label, conditions=conditions)
    require(rows > 0, job.file, "`accept_length`")
    return reading


def _lengths(run: Field) -> list[Field]:
    metrics = run.get("metrics")
    entries = list(metrics.items()) if isinstance(metrics.value, list) else []
    return [entry.get("accept_length") for entry in entries if has(entry, "accept_length")]
