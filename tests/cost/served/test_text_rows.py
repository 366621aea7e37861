from __future__ import annotations

from pathlib import Path

import pytest

from treeopt.cost.served.reading import read_steps
from treeopt.errors import InputError


def interval(running: int, generated: float, length: float, *, prompts: float = 0.0) -> str:
    return (
        f"INFO [loggers.py] Engine 000: Avg prompt throughput: {prompts} tokens/s, Avg generation throughput: "
        f"{generated} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%\n"
        f"INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: {length}, Accepted: 1200 tokens, Drafted: "
        f"2000 tokens, Per-position acceptance rate: 0.700, 0.500, Avg Draft acceptance rate: 60.0%\n"
    )


BENCH = """============ Serving Benchmark Result ============
Maximum request concurrency:             8
Output token throughput (tok/s):         2000.0
{spec}=================================================="""
SPEC = "Acceptance length:                       2.50\nDrafts:  100\nDraft tokens:  300\nAccepted tokens: 150\n"


def rows(tmp_path: Path, text: str) -> list[tuple[int, int, float]]:
    path = tmp_path / "out.txt"
    path.write_text(text)
    return [(row.batch, row.depth, round(row.step_time_s, 9)) for row in read_steps([path]).rows]


def test_a_vllm_log_gives_steps_where_decoding_was_steady(tmp_path: Path) -> None:
    # 8 requests x 2.2 tokens per step at 1,760 tokens/s: 10 ms; the first interval may have begun with fewer requests.
    steady = interval(8, 1760.0, 2.2)
    assert rows(tmp_path, interval(8, 900.0, 2.2) + steady) == [(8, 2, 0.01)]
    others = interval(8, 1700.0, 2.2, prompts=500.0) + interval(9, 1000.0, 2.2)
    assert rows(tmp_path, steady * 2 + others) == [(8, 2, 0.01)]


def test_a_bench_gives_the_step_of_its_concurrency(tmp_path: Path) -> None:
    # 8 requests x 2.5 tokens per step at 2,000 tokens/s: 10 ms; without speculation 4 ms.
    assert rows(tmp_path, BENCH.format(spec=SPEC)) == [(8, 3, 0.01)]
    assert rows(tmp_path, BENCH.format(spec="")) == [(8, 0, 0.004)]
    assert rows(tmp_path, BENCH.format(spec=SPEC) + "\n" + BENCH.format(spec="")) == [(8, 3, 0.01), (8, 0, 0.004)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (interval(8, 1760.0, 2.2), "no step time follows from it"),
        (BENCH.format(spec=SPEC).replace("Maximum request", "X"), "out.txt:3: the table has no request concurrency"),
        (BENCH.format(spec="Accept length:   4.53\n"), "does not say how many tokens were drafted"),
    ],
)
def test_what_gives_no_step_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        rows(tmp_path, text)
