"""Settings of drafters that guess a block in one pass: what each engine is told, counts and reads back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from engines.samples import CHAIN, INTENT, chain

from treeopt.engines.exporting import Export, export
from treeopt.engines.format import Setup
from treeopt.engines.importing import import_file
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError


def exported(schedule: DraftSchedule, engine: str, **setup: object) -> Export:
    return export(schedule, find_engine(engine), Setup(**setup))  # type: ignore[arg-type]


def of_vllm(schedule: DraftSchedule, engine: str = "vllm", **setup: object) -> dict[str, object]:
    value: dict[str, object] = json.loads(str(exported(schedule, engine, **setup).written.content))
    return value


@pytest.mark.parametrize(
    ("drafter", "method", "more"),
    [
        ("dflash", "dflash", {}),
        ("dflash2", "dflash", {}),
        ("peagle", "eagle3", {"parallel_drafting": True}),
        ("pard:x", "draft_model", {"parallel_drafting": True}),
    ],
)
def test_vllm_takes_a_length_per_batch_range(drafter: str, method: str, more: dict[str, object]) -> None:
    ranges = [[1, 4, 4], [5, 16, 2], [17, 256, 0]]
    assert of_vllm(INTENT, drafter=drafter, draft_model="D") == {
        "method": method,
        "model": "D",
        **more,
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": ranges,
    }
    notes = exported(INTENT, "vllm", drafter=drafter).notes
    assert any("as wide as num_speculative_tokens at every batch size" in note for note in notes)
    assert any("V2 only" in note for note in notes) == (drafter == "dflash2")


def test_dspark_verifies_adaptively_on_a_gpu_alone() -> None:
    assert of_vllm(CHAIN, drafter="dspark", draft_model="D")["method"] == "dspark"
    assert "num_speculative_tokens_per_batch_size" in of_vllm(INTENT, drafter="dspark")
    assert any("enable_adaptive_verification" in n for n in exported(CHAIN, "vllm", drafter="dspark").notes)
    launch = exported(INTENT, "vllm==0.26.0", drafter="dspark").written.launch
    assert launch.startswith("VLLM_USE_V2_MODEL_RUNNER=1 ")
    with pytest.raises(InputError, match="needs a GPU"):
        exported(CHAIN, "vllm", drafter="dspark", device="cpu")


@pytest.mark.parametrize(
    ("engine", "drafter"),
    [
        ("vllm==0.15.0", "peagle"),
        ("vllm==0.15.0", "pard:x"),
        ("vllm==0.19.1", "dflash"),
        ("vllm==0.24.0", "dspark"),
        ("vllm==0.32.0", "dflash2"),
        ("sglang==0.5.22", "dspark"),
        ("trtllm==1.3.0rc27", "dflash"),
        ("vllm", "jetspec"),
    ],
)
def test_releases_before_refuse(engine: str, drafter: str) -> None:
    with pytest.raises(InputError):
        exported(CHAIN, engine, drafter=drafter)


def test_sglang_counts_the_root_in_a_dflash_block_and_not_in_a_dspark_one() -> None:
    dflash, dspark = (str(exported(CHAIN, "sglang", drafter=d).written.content) for d in ("dflash", "dspark"))
    assert dflash == "--speculative-dflash-block-size 5"
    assert dspark == "--speculative-dspark-block-size 4"
    assert any("treeopt profile table --engine sglang" in n for n in exported(CHAIN, "sglang", drafter="dspark").notes)


@pytest.mark.parametrize(
    ("flags", "length"),
    [
        ("", 7),
        ("--speculative-dspark-block-size 5", 5),
        ("--speculative-num-draft-tokens 6", 5),
        ("--speculative-dspark-block-size 5 --speculative-num-draft-tokens 6", 5),
    ],
)
def test_dspark_of_sglang_is_read(flags: str, length: int, tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(f"python -m sglang.launch_server --speculative-algorithm DSPARK {flags}\n")
    found = import_file(path)
    assert (found.schedule.only, found.drafter) == (chain(length), "dspark")


def test_dspark_lengths_that_contradict_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(
        "x --speculative-algorithm DSPARK --speculative-dspark-block-size 5 --speculative-num-draft-tokens 5"
    )
    with pytest.raises(InputError, match="5 draft tokens with a DSPARK block of 5"):
        import_file(path)


@pytest.mark.parametrize(
    ("config", "length", "drafter", "note"),
    [
        ({"method": "suffix"}, 24, "suffix", "as many tokens as match"),
        ({"method": "suffix", "num_speculative_tokens": 8}, 8, "suffix", "8 at most"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 12}, 12, "suffix", "12 at most"),
        ({"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 7}, 7, "peagle", None),
        ({"method": "draft_model", "parallel_drafting": True, "num_speculative_tokens": 9}, 9, "pard", None),
        ({"method": "draft_model", "num_speculative_tokens": 9}, 9, "model", None),
        (
            {"method": "dspark", "num_speculative_tokens": 7, "enable_adaptive_verification": True},
            7,
            "dspark",
            "fewer drafts in a step",
        ),
    ],
)
def test_vllm_settings_are_read_as_what_they_are(
    config: dict[str, object], length: int, drafter: str, note: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"speculative_config": config}))
    found = import_file(path)
    assert (found.schedule.only, found.drafter) == (chain(length), drafter)
    assert note is None or any(note in text for text in found.notes)


def of_trtllm(**setup: object) -> dict[str, object]:
    found = exported(CHAIN, "trtllm", **setup)
    value: dict[str, object] = yaml.safe_load(str(found.written.content))["speculative_config"]
    return value


@pytest.mark.parametrize(("drafter", "word"), [("dflash", "DFlash"), ("dspark", "DSpark"), ("pard:x", "PARD")])
def test_trtllm_drafts_one_chain(drafter: str, word: str) -> None:
    assert of_trtllm(drafter=drafter, draft_model="D") == {
        "decoding_type": word,
        "speculative_model": "D",
        "max_draft_len": 4,
    }
    with pytest.raises(InputError):
        exported(INTENT, "trtllm", drafter=drafter)


def test_trtllm_is_told_to_leave_the_threshold_out(tmp_path: Path) -> None:
    assert any("stops drafting for good" in note for note in exported(CHAIN, "trtllm", drafter="eagle3").notes)
    path = tmp_path / "config.yaml"
    section = "decoding_type: Eagle3, max_draft_len: 4, acceptance_rate_threshold: 0.5, use_sa_spec: true"
    path.write_text(f"speculative_config: {{{section}}}\n")
    notes = import_file(path).notes
    assert any("acceptance_rate_threshold" in note and "for good" in note for note in notes)
    assert any("suffix match" in note for note in notes)
