"""Which part of the package may import which."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import treeopt

ROOT = Path(treeopt.__file__).parent
FORBIDDEN = {
    "treeopt.files": ("treeopt.cli", "treeopt.render", "treeopt.engines"),
    "treeopt.plan": ("treeopt.cli", "treeopt.render", "treeopt.engines"),
    "treeopt.solve": ("treeopt.cli", "treeopt.render", "treeopt.engines"),
    "treeopt.acceptance": ("treeopt.cli", "treeopt.render", "treeopt.engines"),
    "treeopt.cost": ("treeopt.cli", "treeopt.render", "treeopt.engines", "treeopt.acceptance.importers"),
    "treeopt.engines": ("treeopt.cli", "treeopt.render"),
    "treeopt.kernels": ("treeopt.cli", "treeopt.render"),
    "treeopt.decode": ("treeopt.cli", "treeopt.render"),
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def package_of(module: str) -> str:
    """`treeopt.cost` of `treeopt.cost.steps.fit`; `treeopt` of the modules that lie in no subpackage: the core."""
    parts = module.split(".")
    return ".".join(parts[:2]) if (ROOT / "/".join(parts[1:2])).is_dir() else "treeopt"


def imported(source: str) -> Iterator[str]:
    """All that the text imports, at its top or inside functions: of `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide what is imported"
            yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))


def wrong(module: str, source: str) -> list[str]:
    """What a module may not import, but does."""
    forbidden = FORBIDDEN.get(package_of(module), ())
    return [name for name in imported(source) if any(name == f or name.startswith(f"{f}.") for f in forbidden)]


# In a checkout the kernels are behind a link, which rglob does not follow.
FILES = [Path(folder, file) for folder, _, files in os.walk(ROOT, followlinks=True) for file in sorted(files)]
MODULES = {module_of(path): path for path in FILES if path.suffix == ".py"}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_directions(package: str) -> None:
    own = {m: path for m, path in MODULES.items() if package_of(m) == package}
    assert own
    found = {m: names for m, path in own.items() if (names := wrong(m, path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    ("module", "source", "names"),
    [
        ("treeopt.solve.search", "import treeopt.cli", ["treeopt.cli"]),
        ("treeopt.solve.search", "def f():\n    from treeopt import render", ["treeopt.render"]),
        ("treeopt.acceptance.traffic", "from treeopt.engines import vllm", ["treeopt.engines", "treeopt.engines.vllm"]),
        ("treeopt.solve.search", "from treeopt.cost.base import StepCost", []),
        ("treeopt.cost.steps.fit", "from treeopt.acceptance import importers", ["treeopt.acceptance.importers"]),
        ("treeopt.cost.steps.fit", "from treeopt.acceptance.model import PathModel", []),
        ("treeopt.kernels.step", "import treeopt.cli.console as c", ["treeopt.cli.console"]),
        ("treeopt.cli.search", "from treeopt.engines.registry import find_engine", []),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, names: list[str]) -> None:
    assert wrong(module, source) == names
