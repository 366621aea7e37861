"""SGLang's `bench_speculative.py`: one JSON line per batch size and triple, with the mean accepted length.

Format: sgl-project/sglang, scripts/playground/bench_speculative.py (commit 01d2a3d). The length counts the bonus token.
"""

from __future__ import annotations

from treeopt.acceptance.importers.reading import SERVED, Job, Reading
from treeopt.acceptance.importers.triples import triple_reading
from treeopt.files.evidence_lines import count, find_mappings, require


def read_sglang_bench(job: Job) -> Reading:
    """Mean evidence per line that drafted a chain; lines that drafted a tree are listed, not planned from."""
    reading, rows = Reading(), 0
    for document in job.file.records():
        for run in find_mappings(document, "acc_length"):
            rows += 1
            label = f"b{count(run.get('batch_size', 0))} steps{run.get('steps', None).value}"
            conditions = SERVED
            reading += triple_reading(job, run, run.get("acc_length"), label=label, conditions=conditions)
    require(rows > 0, job.file, "`acc_length`")
    return reading
