"""What of treeopt works on this machine: extras, the GPU, the engines, and what each lack costs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from treeopt.engines.registry import ENGINES, find_engine
from treeopt.errors import InputError
from treeopt.extras import install_command, require
from treeopt.version import VERSION


class _Extra(NamedTuple):
    packages: tuple[str, ...]
    needed_by: str


EXTRAS: Final = {
    "gpu": _Extra(("torch",), "profile, bench, verify, runtime tensors, the reference decoder"),
    "hf": _Extra(
        ("torch", "transformers", "accelerate", "safetensors", "gguf"), "ranks collect, bench, verify --model"
    ),
    "arrow": _Extra(("pyarrow",), "traces and timing rows in Parquet"),
    "ray": _Extra(("ray",), "ranks collect --ray"),
    "measure": _Extra(("httpx",), "measure, ranks watch, check --url"),
    "report": _Extra(("jinja2", "matplotlib"), "report, search --report, --plot"),
}
_PACKAGES: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "tensorrt-llm",
    "openvino": "openvino-genai",
    "mlc": "mlc-llm",
    "llamacpp": "llama-cpp-python",
    "transformers": "transformers",
    "tgi": "text-generation-server",
    "lmdeploy": "lmdeploy",
    "speculators": "speculators",
}


@dataclass(frozen=True, kw_only=True)
class ExtraState:
    """An extra of treeopt: the packages that it lacks, what needs it, and the command that brings it."""

    name: str
    missing: tuple[str, ...]
    needed_by: str
    install: str


@dataclass(frozen=True, kw_only=True)
class SeenGpu:
    """The GPU that torch sees; empty with the reason where it sees none."""

    name: str
    why_not: str


@dataclass(frozen=True, kw_only=True)
class EnginePackage:
    """An engine that is installed here, the release that treeopt was checked against, and whether it knows this one."""

    name: str
    version: str
    checked: str
    is_known: bool


@dataclass(frozen=True, kw_only=True)
class Health:
    """Everything that `treeopt doctor` looks at."""

    FORMAT: ClassVar[str] = "treeopt.doctor/1"
    WRITTEN: ClassVar[tuple[str, ...]] = ("treeopt", "python", "extras", "gpu", "engines")
    treeopt: str
    python: str
    extras: tuple[ExtraState, ...]
    gpu: SeenGpu
    engines: tuple[EnginePackage, ...]


def examine() -> Health:
    """Look at this interpreter's packages and at the GPU."""
    return Health(
        treeopt=VERSION,
        python=platform.python_version(),
        extras=tuple(_extra(name, extra) for name, extra in EXTRAS.items()),
        gpu=_gpu(),
        engines=tuple(_engines()),
    )


def _extra(name: str, extra: _Extra) -> ExtraState:
    missing = tuple(package for package in extra.packages if _version(package) is None)
    return ExtraState(name=name, missing=missing, needed_by=extra.needed_by, install=install_command(name))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> SeenGpu:
    if _version("torch") is None:
        return SeenGpu(name="", why_not="torch is not installed")
    try:
        torch = require("torch", extra="gpu")
    except InputError as error:
        return SeenGpu(name="", why_not=str(error))
    if torch.cuda.is_available():
        return SeenGpu(name=str(torch.cuda.get_device_name()), why_not="")
    return SeenGpu(name="", why_not=_blind(torch))


def _blind(torch: Any) -> str:
    """Why torch sees no GPU."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} is built for processors only"
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
        return "no GPU device is visible (/dev/nvidia0 or /dev/kfd): in a container, start it with GPUs"
    try:
        torch.cuda.init()
    except Exception as error:  # the driver's own words, whatever their type
        return " ".join(str(error).split())
    return "torch finds none, though a device is there: is CUDA_VISIBLE_DEVICES empty?"


def _engines() -> list[EnginePackage]:
    found = []
    for engine in ENGINES:
        package = _PACKAGES.get(engine.name)
        version = None if package is None else _version(package)
        if version is not None:
            found.append(
                EnginePackage(
                    name=engine.name, version=version, checked=engine.checked, is_known=_knows(engine.name, version)
                )
            )
    return found


def _knows(engine: str, version: str) -> bool:
    try:
        find_engine(f"{engine}=={version}")
    except InputError:
        return False
    return True
