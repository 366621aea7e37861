from __future__ import annotations

import gzip
import io
import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from check.logs import OFF, sglang_line
from shared import SHARED, needs_shared

from treeopt.acceptance.importers import KINDS, read_evidence
from treeopt.acceptance.loading import load_profile
from treeopt.acceptance.position import MAX_DRAFT_TOKENS, MeanLength, PositionSurvival
from treeopt.acceptance.table import DepthRanks
from treeopt.errors import InputError, UnknownNameError
from treeopt.files.typed import yaml_text

INPUTS = SHARED / "data" / "inputs"
REFUSED = {
    "README.md",
    "export_targets.md",
    "medusa_heads_accuracy_pt.md",
    "report_numbers.json",
    "trees.py.txt",
    "vllm_dynamic_speculative_config.json",
}
V1 = (
    "INFO SpecDecoding metrics: Mean acceptance length: 2.37, Accepted: 137 tokens, Drafted: 300 tokens, "
    "Per-position acceptance rate: 0.650, 0.440, 0.280, Avg Draft acceptance rate: 45.7%\n"
)


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, rank=np.zeros((2, 2), dtype=np.int8))
    return file.getvalue()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("\n\n", "nothing in it is known as evidence"),
        (b"\x7fELF\0\0", "not a text file"),
        (V1.encode("utf-16"), "not a text file"),
        (gzip.compress(V1.encode()), "the file is compressed"),
        (npz(), "a trace (NPZ) is no import"),
        (npz()[:-30], "a damaged zip file"),
        ("format: treeopt.ranks/1\n", "a treeopt file already"),
        ("# mine\nformat: treeopt.plan/2\nacceptance_length: 1.4\n", "this is a treeopt.plan/2, no measurement"),
        ('{\n  "format": "treeopt.watch/1",\n  "acceptance_length": 2.1\n}', "a treeopt.watch/1, no measurement"),
        ('{"format":"treeopt.export/2","proof":"vllm:spec_decode_num_drafts"}', "a treeopt.export/2, no measurement"),
        ("mc_sim_7b_63 = [[0], [1]]", "a list of draft trees"),
        ("hello", "nothing in it is known as evidence"),
    ],
)
def test_files_without_evidence_are_refused_with_the_reason(refusal, text: str | bytes, words: str) -> None:
    assert words in str(refusal(text))


def test_without_speculation_is_told_from_the_whole_file(read, refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's other lines stand before and behind those that count drafts."""
    monkeypatch.setattr("treeopt.files.opening.CHUNK_BYTES", 7)
    vllm, sglang = OFF.values()
    counted = "".join(
        f'vllm:spec_decode_num_{name}_total{{engine="0"}} {n}\n'
        for name, n in (("drafts", 10), ("draft_tokens", 30), ("accepted_tokens", 15))
    )
    assert read(vllm + counted).kind == "vllm-prometheus"
    assert read(sglang + sglang_line(8, 2.5) + "\n" + sglang, draft_tokens=3).kind == "sglang-log"
    assert "vLLM metrics without spec_decode counters: speculation is not on" in str(refusal(vllm))
    assert read(counted + vllm).kind == "vllm-prometheus"
    assert "is vLLM metrics without speculation, " in str(refusal(vllm, counted))


def test_the_refusal_lists_what_was_looked_for(refusal) -> None:
    hint = refusal("hello").hint
    assert all(name in hint for name in KINDS)


def test_paths_and_kinds_that_do_not_exist(tmp_path: Path, refusal) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_evidence([tmp_path / "none.log"])
    with pytest.raises(InputError, match="is a directory"):
        read_evidence([tmp_path])
    with pytest.raises(InputError, match="no file given"):
        read_evidence([])
    with pytest.raises(UnknownNameError, match="vllm-logs"):
        read_evidence([tmp_path / "none.log"], kind="vllm-logs")
    assert "0 draft tokens" in str(refusal("2.3", kind="mean", draft_tokens=0))


def test_files_of_two_kinds_are_not_mixed(refusal) -> None:
    error = refusal(V1, "mean accepted length 2.3")
    assert "is vllm-log" in str(error)
    assert "is mean" in str(error)


def test_files_of_one_kind_stand_side_by_side(read) -> None:
    assert [p.name for p in read(V1, V1).profiles] == ["sample", "sample-2"]


def test_three_scrapes_cannot_be_subtracted(refusal) -> None:
    assert "3 scrapes" in str(refusal(*["vllm:spec_decode_num_drafts_total 1\n"] * 3))


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "mean"])
def test_a_forced_kind_says_what_it_missed(refusal, kind: str) -> None:
    assert re.search(r"no .* found|expected a table|not a .pt file", str(refusal('{"x": 1}', kind=kind)))


def test_words_deep_in_a_log_and_across_chunks_are_found(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeopt.files.opening.CHUNK_BYTES", 7)
    assert read("startup\n" * 200 + V1).kind == "vllm-log"
    choice = {"idxs": [99], "new_tokens": [300], "alpha": [60], "alpha_num": [100]}
    assert read(json.dumps({"choices": [choice]}), name="a.jsonl").kind in ("eagle-alpha", "eagle-answers")


def test_json_may_be_indented_with_tabs(refusal) -> None:
    text = json.dumps({"spec_verify_ct": 7, "spec_num_correct_drafts": -1}, indent="\t")
    assert "out of range" in str(refusal(text))


def test_broken_json_names_its_line(refusal) -> None:
    assert "sample.txt:2: the file ends in the middle" in str(
        refusal('{"spec_verify_ct": 0}\n{"spec_verify', name="sample.txt")
    )
    assert "sample.txt:3: not valid JSON" in str(refusal('{\n"spec_verify_ct": 7,\n}'))


def test_a_large_log_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    noise = ("x" * 200 + "\n") * 5000
    with path.open("w") as file:
        for _ in range(30):
            file.write(noise)
            file.write(V1)
    tracemalloc.start()
    found = read_evidence([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sources[0].tally.drafts == 3000
    assert path.stat().st_size > 30e6
    assert peak < 8e6


def test_an_endless_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.log"
    path.write_bytes(V1.encode() + b"x" * (17 << 20))
    with pytest.raises(InputError, match="line 2 is longer than 16 MiB"):
        read_evidence([path])


def test_profiles_survive_the_file(read, tmp_path: Path) -> None:
    found = read(V1).profiles[0]
    path = tmp_path / "p.yaml"
    path.write_text(yaml_text(found))
    again = load_profile(path)
    assert again.document() == found.document()
    assert again.kind == "position"


@needs_shared
@pytest.mark.parametrize("name", sorted(p.name for p in INPUTS.glob("*")) if INPUTS.is_dir() else [])
def test_every_shared_input_imports_or_is_refused_with_a_reason(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(InputError):
            read_evidence([INPUTS / name])
        return
    found = read_evidence([INPUTS / name])
    assert found.sources or found.unplanned
    assert found.supports
    for profile in found.profiles:
        model = profile.model()
        assert 1 <= model.depth <= MAX_DRAFT_TOKENS
        assert profile.note.startswith(found.sources[0].supports.split(" ")[0])
        assert len(profile.sha256) == 64


@needs_shared
def test_the_numbers_that_must_hold() -> None:
    metrics = read_evidence([INPUTS / "vllm_metrics_k8.prom"]).sources[0]
    assert round(metrics.tally.mean_accepted_length or 0, 3) == 4.496
    assert isinstance(metrics.profile.evidence, PositionSurvival)
    assert round(float(metrics.profile.evidence.survival[0]), 4) == 0.7617
    medusa = {p.name: p.evidence for p in read_evidence([INPUTS / "medusa_acc_wandb.csv"]).profiles}
    head = medusa["medusa_acc_wandb-7b"]
    assert isinstance(head, DepthRanks)
    assert head.rates[0].round(4).tolist() == [0.5604, 0.1113, 0.0554, 0.0328, 0.0200]
    report = read_evidence([INPUTS / "trtllm2506_heads_topk.txt"]).sources[0]
    assert isinstance(report.profile.evidence, DepthRanks)
    assert report.profile.evidence.rates.shape == (3, 1)
    assert [(s.first_rank, s.last_rank) for s in report.known_sums] == [(1, 4), (1, 4)]


@needs_shared
def test_the_shared_decode_lines(tmp_path: Path) -> None:
    for name, length, draft_tokens in (("old", 2.17, 3), ("new", 3.03, 7)):
        path = tmp_path / name
        path.write_text((INPUTS / f"sglang_decode_log_{name}.txt").read_text().splitlines()[0])
        evidence = read_evidence([path]).profiles[0].evidence
        assert evidence == MeanLength(mean_accepted_length=length, draft_tokens=draft_tokens)
