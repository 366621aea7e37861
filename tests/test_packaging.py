"""The sdist and the wheel hold the whole package, its data, and nothing that another project owns."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """File names in the sdist (below its folder) and in the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    with zipfile.ZipFile(wheel) as zipped:
        in_wheel = set(zipped.namelist())
    return in_sdist, in_wheel


def package_files() -> set[str]:
    """What the package must hold, through the two links, as it lies in the checkout."""
    files = set()
    for folder, name in (
        (ROOT / "treeopt", "treeopt"),
        (ROOT / "kernels", "treeopt/kernels"),
        (ROOT / "profiles", "treeopt/profiles"),
    ):
        for file in folder.rglob("*"):
            if (
                file.is_file()
                and "__pycache__" not in file.parts
                and file.suffix in (".py", ".yaml", ".npz", ".md", ".jinja", ".typed")
            ):
                relative = file.relative_to(folder)
                if not (name == "treeopt" and relative.parts[0] in ("kernels", "profiles")):
                    files.add(f"{name}/{relative.as_posix()}")
    return files


def test_the_wheel_holds_the_package_and_its_data(built: tuple[set[str], set[str]]) -> None:
    _, wheel = built
    expected = package_files()
    assert {
        "treeopt/py.typed",
        "treeopt/profiles/ranks/smollm2-135m-eagle.npz",
        "treeopt/kernels/__init__.py",
    } <= expected
    assert {name for name in wheel if ".dist-info/" not in name} == expected


def test_the_wheel_leaves_the_name_kernels_alone(built: tuple[set[str], set[str]]) -> None:
    _, wheel = built
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"treeopt"}


def test_the_sdist_holds_what_the_wheel_is_built_from(built: tuple[set[str], set[str]]) -> None:
    sdist, _ = built
    assert package_files() <= sdist
    assert {"pyproject.toml", "LICENSE", "NOTICE", "README.md"} <= sdist
