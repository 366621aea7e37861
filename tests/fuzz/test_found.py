"""What the driver found, each as the smallest case of its kind."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from collect.conftest import save_llama
from golden.running import INPUTS

from treeopt.acceptance.loading import load_profile
from treeopt.cost.fit.profile import FitRequest, fit_profile
from treeopt.cost.tables.loading import load_cost_table
from treeopt.decode.hf import HuggingFaceModel
from treeopt.engines.importing import import_file, load_drafts
from treeopt.errors import FileFormatError, InputError, SearchError, TreeError
from treeopt.files.npz import NpzFile
from treeopt.files.opening import OpenedFile
from treeopt.plan.reading import load_plan
from treeopt.planner.explain import explain
from treeopt.planner.inputs import inputs_of
from treeopt.planner.search import search
from treeopt.solve.problem import Problem
from treeopt.tree import DraftTree

FIT = {
    "name": "x",
    "processors": None,
    "numbers": "x",
    "licence": "x",
    "date": "2026-01-02",
    "command": "",
    "engine": None,
}
STEPS = "batch,k,step_ms\n1,3,9.0\n4,0,8.0\n4,3,10.0\n"


def test_where_no_allowed_step_has_a_time_the_search_says_so(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(STEPS)  # plain decoding at batch 1 was not measured
    with pytest.raises(SearchError, match="no step that the limits allow has a known time at batch 1"):
        search(1, ranks=str(INPUTS / "position.yaml"), cost=str(tmp_path / "steps.csv"), max_nodes=12, max_depth=1)


def test_a_table_beside_a_model_with_one_node() -> None:
    cost = str(INPUTS / "vllm-table.json")
    plan = search(8, ranks=str(INPUTS / "counts.yaml"), cost=cost, model="llama-3.2-1b", max_nodes=1)
    assert [len(bucket.tree) for bucket in plan.buckets] == [1]


def test_a_log_without_a_draft_gives_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("SpecDecoding metrics: Accepted: 0 tokens, Drafted: 0 tokens, Per-position acceptance rate: \n")
    with pytest.raises(InputError, match=r"vllm\.log"):
        load_profile(path)


@pytest.mark.parametrize("change", [("low: 1.45869", "low: 1.55869"), ("optimality: exact", "optimality: gap x%: ")])
def test_an_old_plan_that_contradicts_itself_is_refused_with_its_line(change: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text((INPUTS / "chains.yaml").read_text().replace(*change))
    with pytest.raises(FileFormatError, match=r"old\.yaml:\d+"):
        load_plan(path)


def test_what_a_plan_was_made_from_is_named_so(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text((INPUTS / "plan.yaml").read_text().replace("model: {name: llama-3.1-8b", "model: {name: lama"))
    plan = load_plan(path)
    with pytest.raises(InputError, match="what the plan was made from: unknown model 'lama'"):
        explain(plan, inputs_of(plan), batch=8)


def test_standard_input_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"buckets: 1\n")))
    with pytest.raises(FileFormatError, match=r"^standard input:1: "):
        load_plan("-")


def test_an_archive_whose_directory_points_nowhere_is_told_in_words(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.savez(file, rank=np.zeros((2, 2), dtype=np.int8))
    data = bytearray(file.getvalue())
    at = data.rindex(b"PK\x01\x02")
    data[at + 42 : at + 46] = b"\xff\xff\xff\x7f"  # where the member begins
    (tmp_path / "t.npz").write_bytes(data)
    with pytest.raises(FileFormatError) as caught:
        NpzFile(OpenedFile(tmp_path / "t.npz"), hint="").read("rank")
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize("number", ["9" * 30, "999999", "4096"])
def test_a_chain_that_no_engine_drafts_is_refused_before_it_is_listed(number: str, tmp_path: Path) -> None:
    path = tmp_path / "flags.txt"
    path.write_text(f"llama-server -m m.gguf --spec-type draft-eagle3 --spec-draft-n-max {number}\n")
    with pytest.raises(FileFormatError, match=r"flags\.txt"):
        import_file(path)
    with pytest.raises(TreeError, match="a tree of 10101 nodes"):
        DraftTree.from_widths([100, 100])


def test_a_rival_without_a_name_is_no_folder() -> None:
    with pytest.raises(InputError, match="without a name"):
        load_drafts("")


@pytest.mark.parametrize("k", ["1000000000", "5000"])
def test_a_draft_of_a_billion_tokens_is_no_row(k: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"batch,k,step_ms\n1,0,7.5\n1,{k},8.4\n")
    with pytest.raises(FileFormatError, match=rf"steps\.csv:3: {k} drafted tokens in a row"):
        load_cost_table(path)


def test_a_profile_whose_trace_is_gone_says_which_profile(tmp_path: Path) -> None:
    path = tmp_path / "of-trace.yaml"
    path.write_text("format: treeopt.ranks/1\nname: x\ntrace: gone.npz\n")
    with pytest.raises(FileFormatError, match=r"of-trace\.yaml:3: trace: .*gone\.npz: no such file"):
        load_profile(path)


@pytest.mark.parametrize(("old", "new"), [("10.6695253", "1e-308"), (",1,1024,", ",1,1e308,"), ("8,1,", "8,0,")])
def test_a_timing_row_that_no_kernel_has_is_named(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text((INPUTS / "attention.csv").read_text().replace(old, new, 1))
    with pytest.raises(FileFormatError, match=r"rows\.csv:\d+: the \w+ is not a positive number"):
        fit_profile([INPUTS / "gemm.csv", path], [], FitRequest.of_gpu(None, "h100-sxm", None, None, **FIT))


def test_a_column_without_its_name_is_missed_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text((INPUTS / "attention.csv").read_text().replace(",batch_size,", ",,", 1))
    with pytest.raises(FileFormatError, match=r"rows\.csv: it has no column batch_size"):
        fit_profile([INPUTS / "gemm.csv", path], [], FitRequest.of_gpu(None, "h100-sxm", None, None, **FIT))


def test_a_budget_without_end_is_no_budget() -> None:
    with pytest.raises(InputError, match="budget inf"):
        Problem(batches=(1,), budget_tokens=float("inf"))


@pytest.mark.parametrize("end", [10**40, -1, "x", [3, None], True])
def test_an_end_of_texts_that_is_no_token_is_named(end: object, tmp_path: Path) -> None:
    target = save_llama(tmp_path / "target", seed=1)
    for name in ("generation_config.json", "config.json"):
        config = json.loads((target / name).read_text())
        (target / name).write_text(json.dumps({**config, "eos_token_id": end}))
    with pytest.raises(InputError, match="target"):
        HuggingFaceModel.load(str(target))
