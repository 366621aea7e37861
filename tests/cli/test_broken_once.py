"""What broke a command once, each by its row of the table beside the files: refused or read, nothing destroyed."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collect.conftest import save_llama
from golden.running import INPUTS, TRACE
from shared import DATA, needs_shared

FILES = DATA / "faults" / "break"
Run = Callable[..., Any]
Wrong = Callable[..., None]

SAID = (
    ("ranks import heads_expanded_bomb.pt", "a head claims more values than the file holds"),
    ("replay tree.yaml --trace zerosize.npz", "shape [1000000000, 6] has rows without values"),
    ("search --batch 8 --hardware tflops.yaml", "tflops.yaml:9: peak_flops.bf16: 362.05 FLOP/s is out of range"),
    ("search --batch 8 --hardware gbs.yaml", "gbs.yaml:1: bandwidth_bytes_per_s: 864 byte/s is out of range"),
    ("ranks show docdate.npz", "docdate.npz: 'doc_id' is datetime64[s], expected whole numbers or text"),
    ("search --batch 8 --ranks docdate.npz", "docdate.npz: 'doc_id' is datetime64[s]"),
    ("replay tree.yaml --trace pos_text.npz", "pos_text.npz: 'pos' is <U5, expected whole numbers"),
    ("profile fit --rows deepj.jsonl --datasheet h100-sxm --out o.yaml", "deepj.jsonl:1: not valid JSON"),
    ("search --batch 8 --model model_huge_number.yaml", "model_huge_number.yaml:10: experts.shared_intermediate"),
    ("search --batch 8 --cost vllm_table_long_key.json", "vllm_table_long_key.json:1: batch_stats.1."),
    ("search --batch 8 --cost sps_1e308.json", "sps_1e308.json:1: sample_steps_per_sec[2]: 1e+308 is out of range"),
    ("ranks show depth_20000.jsonl", "depth_20000.jsonl: 'rank' records 20000 depths"),
    ("ranks show rank_bool.jsonl", "rank_bool.jsonl:6: 'rank' is of the wrong kind"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    for name in ("tree.yaml", "gemm.csv", "config.json", "vllm-after.prom", "ids.jsonl"):
        if (INPUTS / name).exists():
            shutil.copyfile(INPUTS / name, tmp_path / name)
    (tmp_path / "ids.jsonl").write_text('{"token_ids": [1, 2, 3]}\n{"token_ids": [4, 5]}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "target", seed=1)


@pytest.fixture
def target(folder: Path, model: Path) -> Path:
    return Path(shutil.copytree(model, folder / "target"))


@needs_shared
@pytest.mark.parametrize(("command", "words"), SAID)
def test_it_is_refused_by_its_name(command: str, words: str, folder: Path, run: Run, wrong: Wrong) -> None:
    if ".pt" in command:
        pytest.importorskip("torch")
    wrong(run(*command.split()), words)
    assert not (folder / "o.yaml").exists()


@needs_shared
@pytest.mark.parametrize("command", ["ranks show flipped.parquet", "replay tree.yaml --trace pos_decimal.parquet"])
def test_parquet_is_refused_by_its_name(command: str, folder: Path, run: Run, wrong: Wrong) -> None:
    pytest.importorskip("pyarrow")
    wrong(run(*command.split()), command.split()[-1])


@needs_shared
def test_a_log_through_a_pipe_is_counted_whole(folder: Path) -> None:
    log = (DATA / "inputs" / "vllm_v1_log.txt").read_bytes() * 3000
    found = []
    for place in ("/dev/stdin", "-"):
        command = [sys.executable, "-m", "treeopt", "ranks", "import", place]
        done = subprocess.run(command, input=log, capture_output=True, check=True)
        found.append(b"position, 1,077,000 drafts" in done.stdout)
    assert found == [True, True]


@needs_shared
@pytest.mark.parametrize(
    "command",
    [
        "ranks import vllm-after.prom --out vllm-after.prom",
        "ranks merge a.npz b.npz --out a.npz",
        "search --batch 8 --drafter eagle3:config.json --out config.json",
    ],
)
def test_an_input_is_not_written_over(command: str, folder: Path, run: Run, wrong: Wrong) -> None:
    for name in ("a.npz", "b.npz"):
        shutil.copyfile(TRACE, folder / name)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    wrong(run(*command.split()), f"{command.split()[-1]} is an input of this command")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@needs_shared
@pytest.mark.parametrize(("rows", "code"), [("gemm.csv", 0), ("rows_cr_only.csv", 1)])
def test_a_trace_beside_a_profile_stays(rows: str, code: int, folder: Path, run: Run) -> None:
    (folder / "tr.npz").write_bytes(b"a trace")
    ran = run("profile", "fit", "--rows", rows, "--datasheet", "h100-sxm", "--out", "tr.yaml")
    assert ran.code == code, ran
    assert (folder / "tr.npz").read_bytes() == b"a trace"
    if code:  # the file was read: what it lacks is said
        assert "GEMM rows" in ran.err


@needs_shared
@pytest.mark.parametrize("ranks", ["pad.yaml", "pad2.yaml"])
def test_a_node_that_is_never_accepted_fills_a_cheaper_step(ranks: str, folder: Path, run: Run) -> None:
    ran = run("search", "--batch", "1", "--ranks", ranks, "--cost", "pad.json", "--max-nodes", "8", "--json")
    (bucket,) = json.loads(ran.out)["buckets"]
    assert bucket["tokens_per_s"]["value"] == pytest.approx(205.0, rel=1e-4)


@needs_shared
@pytest.mark.parametrize(
    ("dump", "words"), [("d_kvnan.json", "not a number"), ("d_neg.json", "impossible probability")]
)
def test_numbers_that_no_model_gives_are_differences(dump: str, words: str, folder: Path, run: Run) -> None:
    ran = run("verify", "tree.yaml", "--dump", dump)
    assert ran.code == 3, ran
    assert words in ran.out


@needs_shared
def test_a_part_that_was_cut_is_named_and_collected_anew(folder: Path, target: Path, run: Run) -> None:
    asked = ("ranks", "collect", "--target", "target", "--draft", "ngram", "--prompts", "ids.jsonl", "--out")
    sizes = ("--max-new-tokens", "4", "--documents-per-part", "1", "--device", "cpu")
    assert run(*asked, "whole.npz", *sizes).code == 0
    parts = folder / "t.npz.parts"
    parts.mkdir()
    shutil.copyfile(folder / "truncated_part.npz", parts / "part-000000.npz")
    ran = run(*asked, "t.npz", *sizes)
    assert ran.code == 0, ran
    assert "part-000000.npz" in ran.err
    assert "set aside" in ran.err
    assert (folder / "t.npz").read_bytes() == (folder / "whole.npz").read_bytes()


@needs_shared
def test_a_token_that_no_vocabulary_has_is_refused_with_its_line(
    folder: Path, target: Path, run: Run, wrong: Wrong
) -> None:
    ran = run(
        *("ranks", "collect", "--target", "target", "--draft", "ngram", "--device", "cpu", "--max-new-tokens", "4"),
        *("--prompts", "prompts_big_token.jsonl", "--out", "t.npz"),
    )
    wrong(ran, "prompts_big_token.jsonl:1")
    assert not (folder / "t.npz").exists()


class Runs:
    """What a pickle runs where it is trusted."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("it-ran"),)


@needs_shared
@pytest.mark.parametrize("value", ["no tensors", Runs()], ids=["text", "code"])
def test_weights_that_are_no_tensors_are_refused_and_run_nothing(
    value: object, folder: Path, target: Path, run: Run, wrong: Wrong
) -> None:
    (target / "model.safetensors").unlink()
    (target / "pytorch_model.bin").write_bytes(pickle.dumps(value, protocol=2))
    asked = ("--prompts", "ids.jsonl", "--out", "t.npz", "--max-new-tokens", "4", "--device", "cpu")
    ran = run("ranks", "collect", "--target", "target", "--draft", "ngram", *asked)
    wrong(ran, "target")
    assert "weights_only" not in ran.err
    assert not (folder / "it-ran").exists()


@needs_shared
@pytest.mark.parametrize("command", ["collect", "verify"])
def test_code_of_a_folder_is_refused_and_never_asked_for(command: str, folder: Path, target: Path) -> None:
    config = json.loads((target / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"}}
    (target / "config.json").write_text(json.dumps({**config, **own}))
    code = "open('it-ran', 'w')\nfrom transformers import LlamaConfig as Own, LlamaForCausalLM as Model\n"
    (target / "own.py").write_text(code)
    words = {
        "collect": "ranks collect --target target --draft ngram --prompts ids.jsonl --out t.npz --max-new-tokens 4",
        "verify": "verify tree.yaml --model target",
    }[command].split()
    done = subprocess.run(
        [sys.executable, "-m", "treeopt", *words], input="y\ny\n", text=True, capture_output=True, check=False
    )
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert "error: target" in done.stderr
    assert "[y/N]" not in done.stderr
    assert not (folder / "it-ran").exists()
