from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from treeopt import doctor
from treeopt.cli.console import result
from treeopt.doctor import EXTRAS, EnginePackage, Health, examine
from treeopt.files.typed import json_text
from treeopt.render.doctor import report


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    """Exactly these packages are installed, `_` for `-`."""

    def version(package: str) -> str:
        if package.replace("-", "_") not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package.replace("-", "_")]

    monkeypatch.setattr(doctor.metadata, "version", version)


def test_the_extras_are_those_of_the_package() -> None:
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = {name: value for name, value in declared["optional-dependencies"].items() if name not in ("dev", "docs")}
    assert list(EXTRAS) == list(extras)
    for name, requirements in extras.items():
        for package in EXTRAS[name].packages:
            assert any(r.startswith(package) for r in requirements), (name, package)


def test_an_empty_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    versions(monkeypatch)
    found = examine()
    assert [extra.name for extra in found.extras if extra.missing] == list(EXTRAS)
    assert found.gpu.why_not == "torch is not installed"
    assert found.engines == ()
    result(report(found, 160))
    said = capsys.readouterr().out
    assert "no: pyarrow" in said
    assert "pip install" in said
    assert "Engines: none is installed here" in said


@pytest.mark.parametrize(
    ("cuda", "devices", "why"),
    [
        (None, [], "built for processors only"),
        ("13.0", [], "no GPU device is visible"),
        ("13.0", ["nvidia0"], "too old"),
    ],
)
def test_why_torch_sees_no_gpu(monkeypatch: pytest.MonkeyPatch, cuda: str | None, devices: list[str], why: str) -> None:
    def init() -> None:
        raise RuntimeError("the driver is\ntoo old")

    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(is_available=lambda: False, init=init),
    )
    versions(monkeypatch, torch="2.13.0")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(devices))
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert why in doctor._gpu().why_not


def test_engines_by_release(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, vllm="0.22.0", sglang="0.0.1")
    vllm, sglang = doctor._engines()
    assert (vllm.name, vllm.version, vllm.is_known) == ("vllm", "0.22.0", True)
    assert not sglang.is_known


def test_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, vllm="0.22.0")
    found = examine()
    assert isinstance(found, Health)
    assert isinstance(found.engines[0], EnginePackage)
    assert '"format": "treeopt.doctor/1"' in json_text(found)
