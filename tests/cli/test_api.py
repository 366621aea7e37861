"""The public API: what the commands give, in one import, that stays light."""

from __future__ import annotations

import contextlib
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import treeopt


def test_search_is_the_command(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plan.yaml"
    assert run("search", "--batches", "1,8", "--ranks", "example", "--max-nodes", "16", "--out", path).code == 0
    plan = treeopt.search([1, 8], ranks="example", max_nodes=16, command=treeopt.load_plan(path).created_with.command)
    assert plan.yaml() == path.read_text()
    ran = run("compare", path, "--with", "none", "--with", "chain:3", "--json")
    assert json.loads(ran.out)["comparisons"] == [
        json.loads(json.dumps(row)) for row in _written(treeopt.compare(plan, "none", "chain:3"))
    ]


def _written(found: object) -> list[object]:
    from treeopt.files.typed import write

    rows: list[object] = write(found)["comparisons"]
    return rows


def test_plans_and_trees_are_rivals_too() -> None:
    plan = treeopt.search(8, ranks="example", max_nodes=8)
    found = treeopt.compare(plan, plan, treeopt.DraftTree.chain(2), "chain:2")
    own, tree, words = found.comparisons
    assert (own.verdict, own.gain.value) == ("tie", 0.0)
    assert (tree.other, tree.gain) == (words.other, words.gain)


def test_names_stay_what_they_are_after_every_module_is_imported() -> None:
    """A sub-package of the name of a function would take its place in the package once it is imported."""
    before = {name: getattr(treeopt, name) for name in treeopt.__all__}
    for module in pkgutil.walk_packages(treeopt.__path__, "treeopt."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, treeopt.TreeoptError):  # an extra that is not installed
                importlib.import_module(module.name)
    assert {name: getattr(treeopt, name) for name in treeopt.__all__} == before
    first, second = (treeopt.search(4, ranks="example", max_nodes=4) for _ in range(2))
    assert first.yaml() == second.yaml()


def test_the_list_of_names_is_whole_and_sorted() -> None:
    assert treeopt.__all__ == sorted(treeopt.__all__)
    assert set(treeopt.__all__) <= set(dir(treeopt))
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        treeopt.serach  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, treeopt; print(*sorted(m for m in sys.modules if m.split('.')[0] in ('numpy', 'yaml', 'click')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
