"""How the package is kept: few modules at its root, one class to a name, names that are exported in order."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import treeopt

ROOT = Path(treeopt.__file__).parent
# Names that still stand for two things; the list only gets shorter.
STILL_TWICE = frozenset(
    {
        "Bench",
        "Bucket",
        "Chains",
        "Checked",
        "Family",
        "Level",
        "Point",
        "Pool",
        "Reach",
        "Schedule",
        "Verdict",
        "Verification",
        "Window",
    }
)


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Every module's name and text, those behind the link to the kernels too."""
    for folder, _, files in os.walk(ROOT, followlinks=True):
        for file in sorted(files):
            path = Path(folder, file)
            if path.suffix == ".py":
                name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
                yield name.removesuffix(".__init__"), ast.parse(path.read_text())


def test_a_public_class_name_is_unique() -> None:
    places = defaultdict(list)
    for module, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in STILL_TWICE} == {}
    assert sorted(STILL_TWICE - twice.keys()) == []  # delete these from the list


def test_the_root_holds_few_modules() -> None:
    names = [path.stem for path in ROOT.glob("*.py") if path.stem not in ("__init__", "__main__")]
    assert len(names) <= 12, sorted(names)


def test_imports_are_absolute() -> None:
    """Relative ones hide what is imported."""
    for module, tree in trees():
        relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
        assert not relative, module
