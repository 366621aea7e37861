"""How the package is kept: few modules at its root, one class to a name, names that are exported in order."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import treeopt

ROOT = Path(treeopt.__file__).parent


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
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_root_holds_few_modules() -> None:
    names = [path.stem for path in ROOT.glob("*.py") if path.stem not in ("__init__", "__main__")]
    assert len(names) <= 12, sorted(names)


def test_imports_are_absolute() -> None:
    """Relative ones hide what is imported."""
    for module, tree in trees():
        relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
        assert not relative, module


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/README.md"])
def test_what_the_pages_name_is_there(page: str) -> None:
    text = (ROOT.parent / page).read_text()
    named = set(re.findall(r"`((?:treeopt|tests|benchmarks|profiles|kernels|examples|docs)/[\w./-]*)`", text))
    linked = {str(Path(page).parent / link) for link in re.findall(r"\]\(([^)#:]+)\)", text)}
    assert linked
    assert sorted(path for path in named | linked if not (ROOT.parent / path).exists()) == []


def test_the_functions_that_the_map_names_are_there() -> None:
    named = re.findall(r"`([\w./]+\.py):(\w+)`", (ROOT.parent / "ARCHITECTURE.md").read_text())
    assert len(named) > 3
    for path, function in named:
        tree = ast.parse((ROOT.parent / path).read_text())
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert function in names, path


def test_every_package_has_its_line_on_the_map() -> None:
    text = (ROOT.parent / "ARCHITECTURE.md").read_text()
    packages = [path.name for path in ROOT.iterdir() if (path / "__init__.py").exists() and not path.is_symlink()]
    assert [name for name in packages if f"`treeopt/{name}`" not in text] == []
    pages = [path.name for path in (ROOT.parent / "docs").glob("*.md") if path.name != "README.md"]
    index = (ROOT.parent / "docs" / "README.md").read_text()
    assert [name for name in pages if f"({name})" not in index] == []
