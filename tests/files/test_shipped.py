from __future__ import annotations

from pathlib import Path

import pytest

from treeopt.acceptance.loading import load_profile
from treeopt.cost import load_hardware, load_model
from treeopt.errors import InputError, UnknownNameError
from treeopt.files.shipped import gpu_profile, locate, shipped_names


def test_every_shipped_profile_loads_and_is_named_as_its_file() -> None:
    for kind, load in (("ranks", load_profile), ("hardware", load_hardware), ("models", load_model)):
        names = shipped_names(kind)  # type: ignore[arg-type]
        assert names
        for name in names:
            found = locate(kind, name)  # type: ignore[arg-type]
            assert found.shipped
            assert load(found.path).name == name


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown hardware profile 'h100-smx'") as caught:
        locate("hardware", "h100-smx")
    assert "did you mean h100-sxm?" in caught.value.hint
    assert "a100-sxm" in caught.value.hint


def test_files_win_over_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("x")
    assert not locate("ranks", str(tmp_path / "mine.yaml")).shipped
    monkeypatch.chdir(tmp_path)
    assert locate("ranks", "mine.yaml").reference == "mine.yaml"


def test_a_shipped_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama-3.1-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("models", "llama-3.1-8b").shipped


@pytest.mark.parametrize(
    ("gpu", "engine", "name"),
    [
        ("h200", None, "h200-sxm-vllm-0.24"),
        ("H200", "sglang", "h200-sxm-sglang-0.5.14"),
        ("h200", "trtllm", "h200-sxm-trtllm-1.3"),
        ("h200", "llamacpp", "h200-sxm-vllm-0.24"),  # an engine without rows of its own
        ("NVIDIA RTX 4090", None, "rtx-4090"),
        ("h20", None, "h20"),  # not an H200
        ("h2", None, "h2"),
    ],
)
def test_a_gpus_own_name(gpu: str, engine: str | None, name: str) -> None:
    assert gpu_profile(gpu, engine=engine) == name


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        locate("ranks", str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="is a directory"):
        locate("hardware", str(tmp_path))
