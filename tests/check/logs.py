"""Lines as engines log them, with numbers of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def vllm_line(drafts: int, survival: Sequence[float]) -> str:
    """vLLM's `SpecDecoding metrics:`; the survival must give whole counts."""
    K, accepted = len(survival), round(drafts * sum(survival))
    rates = ", ".join(f"{rate:.3f}" for rate in survival)
    share = 100.0 * accepted / max(drafts * K, 1)
    return (
        f"INFO 04-27 12:00:10 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: {1 + sum(survival):.2f}, "
        f"Accepted throughput: 6.84 tokens/s, Drafted throughput: 8.26 tokens/s, Accepted: {accepted} tokens, Drafted: "
        f"{drafts * K} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {share:.1f}%"
    )


def vllm_throughput(tokens_per_s: float) -> str:
    return (
        "INFO 04-27 12:00:10 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
        f"Avg generation throughput: {tokens_per_s} tokens/s, Running: 3 reqs, Waiting: 0 reqs"
    )


def sglang_line(requests: int, length: float) -> str:
    return f"[2026-08-06 09:53:41] Decode batch, #running-req: {requests}, #token: 7352, accept len: {length:.2f}, x: 1"


def trtllm_iteration(requests: int, draft_tokens: int, accepted: int) -> dict[str, Any]:
    stats = {
        "numDraftTokens": requests * draft_tokens,
        "numAcceptedTokens": accepted,
        "numRequestsWithDraftTokens": requests,
        "acceptanceLength": 1 + accepted / requests if requests else 0.0,
    }
    return {"iter": 1, "specDecodingStats": stats}


def line_for(survival: np.ndarray, drafts: int) -> str:
    """vLLM's line for a survival, rounded to the three decimals that it prints."""
    return vllm_line(drafts, np.round(survival, 3).tolist())


# What engines write that were started without speculation.
OFF = {
    "vLLM metrics": (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        'vllm:generation_tokens_total{engine="0",model_name="m"} 123456.0\n'
    ),
    "SGLang log": "server_args=ServerArgs(model_path='m', speculative_algorithm=None)\n"
    + "[2026-09-01 10:00:03 TP0] Decode batch, #running-req: 1, #token: 46, token usage: 0.00, cuda graph: True, "
    "gen throughput (token/s): 4.43, #queue-req: 0\n" * 3,
}
