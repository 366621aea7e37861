"""Generation configurations through OpenVINO GenAI's own validation, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.wheels import installed, needs_conformance
from engines.samples import CHAIN, TRIPLE, chain

from treeopt.draft_family import DynamicTree
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.importing import import_file
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError

pytestmark = needs_conformance
_JUDGE = """
import json, sys
import openvino_genai
answers = []
for path in sys.argv[1:]:
    try:
        config = openvino_genai.GenerationConfig(path)
        config.max_new_tokens = 8
        config.validate()
        answers.append([config.tree_depth, config.branching_factor, config.num_assistant_tokens])
    except RuntimeError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def judged(*paths: Path) -> list[Any]:
    """Per file its depth, branching and tokens as OpenVINO reads them, or what it says against them."""
    folder = installed("openvino==2026.4.1", "openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")
    command = [sys.executable, "-W", "ignore", "-c", _JUDGE, *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_exports_are_valid(tmp_path: Path) -> None:
    triples = [DynamicTree(3, 2, 11), DynamicTree(1, 4, 5), DynamicTree(5, 8, 64), DynamicTree(4, 2, 5)]
    schedules = [CHAIN, TRIPLE, DraftSchedule.constant(chain(1)), *map(DraftSchedule.constant, triples)]
    paths = []
    for i, schedule in enumerate(schedules):
        paths.append(tmp_path / f"{i}.json")
        content = export(schedule, find_engine("openvino"), Setup()).written.content
        paths[-1].write_text(str(content))
    wanted = [[0, 1, 4], [3, 4, 11], [0, 1, 1], *([t.num_steps, t.topk, t.num_draft_tokens - 1] for t in triples)]
    assert judged(*paths) == wanted


def test_what_it_refuses_fails_here_first(tmp_path: Path) -> None:
    """It lets a tree pass that is larger than its own capacity; that one fails here too."""
    wrong = [
        {"tree_depth": 3, "branching_factor": 2, "num_assistant_tokens": 2},
        {"tree_depth": 3, "branching_factor": 0, "num_assistant_tokens": 3},
        {"tree_depth": 3, "branching_factor": 2, "num_assistant_tokens": 8, "do_sample": True},
        {"tree_depth": 2, "branching_factor": 2, "num_assistant_tokens": 1000},
    ]
    paths = [tmp_path / f"{i}.json" for i in range(len(wrong))]
    for path, config in zip(paths, wrong, strict=True):
        path.write_text(json.dumps(config))
        with pytest.raises(InputError):
            import_file(path, find_engine("openvino"))
    assert [isinstance(answer, str) for answer in judged(*paths)] == [True, True, True, False]
