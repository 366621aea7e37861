"""Evidence that was copied, pasted and interrupted: a clear error or all drafts that are in it, never fewer in silence.

By hand: `TREEOPT_MUTATIONS=5000 pytest tests/acceptance/importers/test_mutated.py`.
"""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from acceptance.importers.samples import SAMPLES

from treeopt.acceptance.importers import KINDS, Imported, read_evidence
from treeopt.errors import InputError

MUTATIONS = int(os.environ.get("TREEOPT_MUTATIONS", "20"))
NOISE = (
    *(b"", b"INFO: 127.0.0.1 - GET /health 200", b"\x1b[32mINFO\x1b[0m done", b"Traceback (most recent call last):"),
    *(b"#", b"---", b"\xff\xfe", b"WARNING 12-01 10:00:00 [x.py:12] slow step: 31 ms", b"   ", b"100%|####| 5/5"),
)
SO_FAR = ("vllm-log-v0", "sglang-rank-probe")  # they print sums so far: the last ones count
TEXTS = [kind for kind in KINDS if kind != "medusa-pt"]


def outcome(data: bytes, kind: str) -> Imported | InputError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        path.write_bytes(data)
        try:
            return read_evidence([path], kind)
        except InputError as error:
            return error


def drafts(found: Imported) -> float:
    """What was counted over all sources, whichever of it the kind tells."""
    tallies = [source.tally for source in found.sources]
    return sum(t.drafts or t.steps or t.accepted_tokens or 0 for t in tallies)


@pytest.mark.parametrize("kind", TEXTS)
def test_lines_of_others_between_its_own(kind: str) -> None:
    rng, lines = random.Random(kind), SAMPLES[kind].split(b"\n")
    whole = outcome(SAMPLES[kind], kind)
    assert isinstance(whole, Imported)
    for _ in range(MUTATIONS):
        mixed = list(lines)
        for _ in range(rng.randint(1, 4)):
            mixed.insert(rng.randint(0, len(mixed)), rng.choice(NOISE))
        found = outcome(b"\n".join(mixed), kind)
        if isinstance(found, Imported) and not found.warnings:
            assert drafts(found) == drafts(whole), b"\n".join(mixed)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_written_several_times_over(kind: str) -> None:
    once = outcome(SAMPLES[kind], kind)
    assert isinstance(once, Imported)
    for times in (2, 3, 7):
        found = outcome((SAMPLES[kind].rstrip(b"\n") + b"\n") * times, kind)
        if isinstance(found, Imported) and not found.warnings:
            assert drafts(found) == drafts(once) * (1 if kind in SO_FAR else times)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_that_lost_its_end(kind: str) -> None:
    rng, data = random.Random(kind), SAMPLES[kind] * 2
    whole = outcome(data, kind)
    for _ in range(MUTATIONS):
        found = outcome(data[: rng.randint(1, len(data))], kind)
        if isinstance(found, Imported) and isinstance(whole, Imported):
            restored = any("restored from printed digits" in warning for warning in found.warnings)  # of a cut digit
            assert drafts(found) <= max(drafts(whole), 1.0) or restored
