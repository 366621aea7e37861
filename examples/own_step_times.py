"""Search with step times of your own instead of the roofline: here a table of measured milliseconds.

Any object with `ridge_tokens` and `step_time_s` will do (`treeopt.cost.StepCost`). The numbers below are Llama-3.1-8B
with an EAGLE drafter in vLLM at batch 16 and K + 1 tokens per request, posted with vLLM pull
request 32374 (GPU not named); between them a step is as slow as the next longer one that was measured.

    python examples/own_step_times.py
"""

from __future__ import annotations

import numpy as np

from treeopt.acceptance.loading import load_profile
from treeopt.files.shipped import locate
from treeopt.solve.problem import Limits, Problem
from treeopt.solve.search import search

BATCH = 16
MS_BY_TOKENS = {1: 7.3, 2: 8.39, 4: 9.95, 5: 10.8, 6: 11.59, 8: 13.11}


class MeasuredSteps:
    """Step times that depend on the tokens per request only."""

    ridge_tokens = 295.0

    def step_time_s(self, batch, nodes, depth, widths, context):  # type: ignore[no-untyped-def]
        tokens = np.array(sorted(MS_BY_TOKENS))
        ms = np.array([MS_BY_TOKENS[n] for n in tokens])
        return ms[np.searchsorted(tokens, np.asarray(nodes))] * 1e-3 + 0.0 * np.asarray(batch)


def main() -> None:
    ranks = load_profile(locate("ranks", "example").path).model()
    question = Problem(batches=(BATCH,), limits=Limits(max_nodes=max(MS_BY_TOKENS)))
    (choice,) = search(question, ranks, MeasuredSteps())
    print(f"best tree: {[list(p) for p in choice.tree.paths]}")
    print(f"{choice.best.expected_tokens:.2f} tokens per step, {choice.speedup:.2f}x plain decoding")
    print(f"best chain: K={choice.chain.depth}, {choice.chain.tokens_per_s / choice.plain.tokens_per_s:.2f}x")


if __name__ == "__main__":
    main()
