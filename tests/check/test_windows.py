from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from check.logs import sglang_line, trtllm_iteration, vllm_line, vllm_throughput
from shared import SHARED, needs_shared

from treeopt.check.windows import LogWindow, pooled, read_windows
from treeopt.files.evidence_lines import SourceFile


def windows(tmp_path: Path, text: str, kind: str) -> list[LogWindow]:
    file = tmp_path / "log"
    file.write_text(text)
    return read_windows(SourceFile(file), kind)


def test_vllm_lines(tmp_path: Path) -> None:
    text = "\n".join([vllm_throughput(50.0), vllm_line(100, (0.8, 0.5)), "other", vllm_line(50, (0.6, 0.2)), ""])
    first, second = windows(tmp_path, text, "vllm-log")
    assert (first.line, first.draft_tokens, first.weight, first.length) == (2, 2, 100.0, 2.3)
    assert (second.line, second.weight, second.length) == (4, 50.0, 1.8)


def test_vllm_pauses(tmp_path: Path) -> None:
    """Throughput without draft metrics is a pause; an idle server is none."""
    busy, idle, drafts = vllm_throughput(50.0), vllm_throughput(0.0), vllm_line(100, (0.8, 0.5))
    found = windows(tmp_path, "\n".join([drafts, busy, drafts, busy, busy, busy, drafts]), "vllm-log")
    assert [w.is_off for w in found] == [False, False, True, False]
    found = windows(tmp_path, "\n".join([drafts, idle, idle, idle, drafts]), "vllm-log")
    assert [w.is_off for w in found] == [False, False]
    found = windows(tmp_path, vllm_line(0, (0.0, 0.0)), "vllm-log")
    assert [w.is_off for w in found] == [True]


def test_sglang_lines(tmp_path: Path) -> None:
    text = "\n".join(
        [
            sglang_line(4, 2.5),
            "Adaptive spec params updated: steps 3 -> 0 (ema_accept_len=0.2)",
            sglang_line(32, 1.0),
            "Adaptive spec params updated: steps 0 -> 3 (ema_accept_len=0.2)",
            sglang_line(4, 1.5),
        ]
    )
    found = windows(tmp_path, text, "sglang-log")
    assert [(w.is_off, w.draft_tokens, w.length) for w in found] == [
        (False, None, 2.5),
        (True, 0, 1.0),
        (False, 3, 1.5),
    ]
    assert found[0].weight == 4.0


def test_trtllm_iterations(tmp_path: Path) -> None:
    text = json.dumps([trtllm_iteration(8, 3, 12), trtllm_iteration(0, 0, 0), trtllm_iteration(4, 3, 2)])
    found = windows(tmp_path, text, "trtllm-stats")
    assert [(w.line, w.is_off, w.length) for w in found] == [(1, False, 2.5), (2, True, 1.0), (3, False, 1.5)]
    assert found[0].draft_tokens == 3


def test_kinds_without_time(tmp_path: Path) -> None:
    assert windows(tmp_path, "vllm:spec_decode_num_drafts_total 5", "vllm-prometheus") == []


def test_the_pooled_error_is_that_of_independent_windows() -> None:
    rng = np.random.default_rng(3)
    means = []
    for _ in range(400):
        lengths = rng.normal(2.5, 0.4, size=12)
        found = pooled([LogWindow(line=i, draft_tokens=3, weight=7.0, length=x) for i, x in enumerate(lengths)])
        assert found.length == pytest.approx(lengths.mean())
        assert found.error == pytest.approx(lengths.std(ddof=1) / np.sqrt(12))
        means.append(found.length)
    assert np.std(means) == pytest.approx(0.4 / np.sqrt(12), rel=0.1)


def test_too_few_windows_have_no_error() -> None:
    found = pooled([LogWindow(line=1, draft_tokens=3, weight=1.0, length=2.0)] * 4)
    assert (found.length, found.error) == (2.0, None)


@needs_shared
@pytest.mark.parametrize(
    ("name", "kind", "lengths"),
    [
        ("vllm_v1_log.txt", "vllm-log", [5.14, 4.94]),
        ("sglang_decode_log_new.txt", "sglang-log", [3.03]),
        ("trtllm_iteration_stats.json", "trtllm-stats", [2.5]),
    ],
)
def test_real_files(name: str, kind: str, lengths: list[float]) -> None:
    found = read_windows(SourceFile(SHARED / "data" / "inputs" / name), kind)
    assert [w.length for w in found][: len(lengths)] == pytest.approx(lengths)
