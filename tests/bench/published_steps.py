"""The datasheet roofline against published step times, by hand: `python tests/bench/published_steps.py`.

23 step times of Llama-3.1-8B with EAGLE chains in vLLM (shared data, measured/vllm_step_ms_by_batch_k.csv; the GPU is
not named, its plain step is that of an H100).
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from treeopt.inputs import Names, load_inputs

TABLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured" / "vllm_step_ms_by_batch_k.csv"
CONTEXT = 300


def main() -> None:
    cost = load_inputs(Names()).cost
    errors = []
    for row in csv.DictReader(TABLE.read_text().splitlines()):
        batch, k = int(row["batch"]), int(row["k"])
        if batch == 4 or (batch == 64 and k == 7):  # repeats batch 1; fell out of CUDA-graph capture
            continue
        widths = np.ones(max(k, 1), dtype=np.int64)
        predicted = float(cost.step_time_s(batch, k + 1, k, widths, CONTEXT)) * 1e3
        errors.append(predicted / float(row["step_ms"]) - 1.0)
    print(f"{len(errors)} steps: mean error {np.mean(errors):+.1%}, mean absolute error {np.mean(np.abs(errors)):.1%}")


if __name__ == "__main__":
    main()
