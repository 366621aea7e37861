from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from check.logs import line_for, sglang_line
from shared import SHARED, needs_shared
from traces import SHIPPED

from treeopt.acceptance.profile import Conditions, RankProfile
from treeopt.acceptance.table import DepthRanks
from treeopt.check.change import length_error
from treeopt.check.measured import of_profile, read_metrics
from treeopt.errors import FileFormatError, InputError

SURVIVAL = np.array([0.8, 0.5, 0.25])


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "metrics.txt"
    path.write_text(text)
    return path


def test_counts_and_their_error(tmp_path: Path) -> None:
    metrics = read_metrics([write(tmp_path, line_for(SURVIVAL, 1000) + "\n")])
    (source,) = metrics.sources
    assert (metrics.kind, source.draft_tokens, source.steps) == ("vllm-log", 3, 1000)
    assert source.length == pytest.approx(2.55)
    assert source.error == pytest.approx(length_error(SURVIVAL, 1000))
    assert source.drafted == pytest.approx(3.0)
    assert len(metrics.windows) == 1


def test_a_log_without_counts_gets_its_error_from_its_lines(tmp_path: Path) -> None:
    arguments = "server_args=ServerArgs(speculative_eagle_topk=4, speculative_num_draft_tokens=16)"
    lines = [arguments, *(sglang_line(8, length) for length in (2.4, 2.6, 2.5, 2.7, 2.3))]
    (source,) = read_metrics([write(tmp_path, "\n".join(lines) + "\n")]).sources
    assert (source.draft_tokens, source.steps) == (None, None)  # a tree: its mean is all there is
    assert source.length == pytest.approx(2.5)
    assert source.error == pytest.approx(np.std([2.4, 2.6, 2.5, 2.7, 2.3], ddof=1) / np.sqrt(5))


def test_one_rank_is_a_chain_several_are_ranks() -> None:
    def profile(counts: list[list[float]]) -> RankProfile:
        evidence = DepthRanks.from_counts(reached=np.array([100.0, 60.0]), counts=np.array(counts))
        return RankProfile(name="p", evidence=evidence, conditions=Conditions(), sha256="")

    chain = of_profile(profile([[60.0], [30.0]]))
    assert chain.survival is not None
    assert chain.survival.tolist() == pytest.approx([0.6, 0.3])
    assert (chain.draft_tokens, chain.steps) == (2, 100.0)
    several = of_profile(profile([[60.0, 20.0], [30.0, 10.0]]))
    assert several.ranks is not None
    assert several.length is None


def test_a_trace_and_a_rank_profile() -> None:
    for path in (SHIPPED, SHIPPED.with_suffix(".yaml")):
        if path.exists():
            (source,) = read_metrics([path]).sources
            assert source.ranks is not None


def test_a_trace_of_json_lines(tmp_path: Path) -> None:
    rows = [{"rank": rank, "doc_id": 0, "pos": pos} for pos, rank in enumerate([[0, 1], [0, -2], [-2, -2]])]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = read_metrics([path])
    (source,) = metrics.sources
    assert (metrics.kind, source.name) == ("paths", "trace")
    assert source.ranks is not None
    assert source.ranks.model().conditional(np.zeros((1, 0), dtype=np.int64))[0, 0] > 0.5


def test_what_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing in it is known"):
        read_metrics([write(tmp_path, "hello\n")])
    with pytest.raises(InputError, match="no such file"):
        read_metrics([tmp_path / "none"])
    with pytest.raises(FileFormatError):  # not mistaken for a server that drafts nothing
        read_metrics([write(tmp_path, line_for(np.array([0.2, 0.7]), 1000) + "\n")])
    cut = read_metrics([write(tmp_path, line_for(np.array([0.7, 0.2]), 1000)[:-40])])
    assert (cut.sources, cut.drafted_nothing) == ((), False)


@needs_shared
@pytest.mark.parametrize(
    ("name", "draft_tokens", "length", "counted"),
    [
        ("vllm_bench_serve_result.json", 8, 4.496, True),
        ("vllm_v0_log.txt", 4, 3.272, True),
        ("trtllm_per_request_choice.json", 3, 2.5, True),
        ("sglang_server_info.json", 3, 2.54, False),
        ("specbench_answers.jsonl", None, 3.0, False),
        ("eagle_alpha.jsonl", 5, None, True),
    ],
)
def test_every_engine(name: str, draft_tokens: int | None, length: float | None, counted: bool) -> None:
    (source,) = read_metrics([SHARED / "data" / "inputs" / name]).sources
    assert source.draft_tokens == draft_tokens
    assert (source.error is not None) == counted
    if length is not None:
        assert source.length == pytest.approx(length, abs=1e-3)
