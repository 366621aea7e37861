"""Search with step times of your own instead of the roofline: here a table of measured milliseconds.

Any object with `ridge_tokens` and `step_time_s` will do. The numbers below are Llama-3.1-8B
with an EAGLE drafter in vLLM at batch 16 and K + 1 tokens per request, posted with vLLM pull
request 32374 (GPU not named); between them a step is as slow as the next longer one that was measured.

    python examples/own_step_times.py
"""

from __future__ import annotations

import numpy as np

import treeopt

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
    plan = treeopt.search(BATCH, ranks="example", cost=MeasuredSteps(), max_nodes=max(MS_BY_TOKENS))
    (bucket,) = plan.buckets
    print(f"best tree: {[list(p) for p in bucket.tree.paths]}")
    print(f"{bucket.acceptance_length.value:.2f} tokens per step, {bucket.speedup.value:.2f}x plain decoding")
    chain, plain = bucket.best_chain, bucket.plain
    print(f"best chain: K={chain.depth}, {chain.tokens_per_s.value / plain.tokens_per_s.value:.2f}x")
    for row in treeopt.compare(plan, "chain:2", "none", cost=MeasuredSteps()).comparisons:
        print(f"against {row.rival}: {row.gain.value:+.1%} ({row.verdict})")


if __name__ == "__main__":
    main()
