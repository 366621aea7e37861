from __future__ import annotations

from pathlib import Path

import pytest

from treeopt.acceptance.loading import load_profile
from treeopt.cost import load_hardware, load_model
from treeopt.errors import InputError, UnknownNameError
from treeopt.files.shipped import locate, shipped_names


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


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        locate("ranks", str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="is a directory"):
        locate("hardware", str(tmp_path))
