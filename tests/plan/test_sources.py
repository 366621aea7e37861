"""Where a plan's files are: by the way from its own folder, from wherever it is read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

import treeopt
from treeopt.errors import InputError
from treeopt.files.shipped import locate
from treeopt.plan.sources import (
    CostSource,
    DrafterSource,
    HardwareSource,
    ModelSource,
    RanksPart,
    RanksSource,
    Sources,
)
from treeopt.planner.inputs import inputs_of

KNOWN = {"name": "x", "sha256": "0" * 64}
RANKS = "format: treeopt.ranks/1\nname: {name}\nevidence: depth-rank\nprobabilities: [[0.6, 0.1], [0.5, 0.1]]\n"


@st.composite
def folders(draw: DrawFn) -> str:
    return "/".join(draw(st.lists(st.sampled_from(["a", "b", ".."]), max_size=4))) or "."


@given(folders(), folders(), st.sampled_from(["r.yaml", "../r.yaml", "a/b/r.yaml", "/abs/r.yaml"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_way_from_the_plan_leads_to_the_same_file(plan_in: str, read_in: str, file: str) -> None:
    """A file is named from one folder, written into a plan in a second and read from a third."""
    start = Path("/w/x/y/z/w/x/y/z")  # deep enough for every ..
    there, here = Path(os.path.normpath(start / plan_in)), Path(os.path.normpath(start / read_in))
    sources = Sources(
        ranks=RanksSource(file=file, evidence="paths", parts=(RanksPart(name="p", file=file, share=1.0),), **KNOWN),
        hardware=HardwareSource(file=file, **KNOWN),
        model=ModelSource(file=None, **KNOWN),
        drafter=DrafterSource(kind="model", file=file),
        cost=CostSource(file=file, **KNOWN),
    )
    absolute = sources.located(lambda name: os.path.normpath(start / name))
    written = absolute.located(lambda name: name if file.startswith("/") else os.path.relpath(name, there))
    found = written.found_from(Path(os.path.relpath(there, here)))
    for own in (found.ranks.file, found.ranks.parts[0].file, found.hardware.file, found.drafter.file):
        assert own is not None
        assert os.path.normpath(here / own) == os.path.normpath(start / file)
    assert found.model.file is None
    assert found.drafter.reference == f"model:{found.drafter.file}"


def test_a_plan_is_found_and_explained_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, other = tmp_path / "work", tmp_path / "other" / "place"
    for folder in (work / "data", work / "plans", other):
        folder.mkdir(parents=True)
    for name in ("one", "two"):
        (work / "data" / f"{name}.yaml").write_text(RANKS.format(name=name))
    shutil.copy(locate("hardware", "h100-sxm").path, work / "data" / "hw.yaml")
    (work / "steps.csv").write_text("batch,k,step_ms\n1,0,7.0\n1,1,7.5\n1,2,8.0\n")
    monkeypatch.chdir(work)
    mixed = treeopt.search(
        1, ranks="data/one.yaml=0.5,data/two.yaml=0.5", hardware="data/hw.yaml", cost="steps.csv", max_nodes=3
    )
    mixed.save(Path("plans/mixed.yaml"))
    text = Path("plans/mixed.yaml").read_text()
    assert "file: ../data/one.yaml" in text
    assert "file: ../steps.csv" in text
    assert str(tmp_path) not in text
    starts = {other: "../../work/plans", work / "plans": ".", tmp_path: "work/plans"}
    for start, path in ((start, f"{way}/mixed.yaml") for start, way in starts.items()):
        monkeypatch.chdir(start)
        assert inputs_of(treeopt.load_plan(path)).evidence.parts[1].name == "two"
        assert treeopt.compare(path, "none").comparisons
    moved = tmp_path / "moved"
    shutil.move(work, moved)
    monkeypatch.chdir(other)
    assert treeopt.compare(str(moved / "plans" / "mixed.yaml"), "none").comparisons
    (moved / "data" / "one.yaml").unlink()
    with pytest.raises(InputError, match=r"moved/data/one\.yaml: no such file"):
        treeopt.compare(str(moved / "plans" / "mixed.yaml"), "none")


def test_plans_of_version_1_name_files_from_where_the_search_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plans").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RANKS.format(name="mine"))
    old = (Path(__file__).parent / "version_1" / "contexts.yaml").read_text()
    Path("plans/plan.yaml").write_text(old.replace("ranks: {name: example,", "ranks: {name: mine, file: mine.yaml,"))
    assert treeopt.load_plan("plans/plan.yaml").sources.ranks.reference == "mine.yaml"
    shutil.copy("mine.yaml", "plans/mine.yaml")
    assert treeopt.load_plan("plans/plan.yaml").sources.ranks.reference == "plans/mine.yaml"
