"""Libraries that only some commands need, imported when they are needed."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Any, Final

from treeopt.errors import InputError

_NAME: Final = "treeopt"


def require(module: str, *, extra: str) -> Any:
    """Import a module of an optional dependency.

    Raises:
        InputError: it is not installed; the hint is the command that brings its extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or module).partition(".")[0]
        raise InputError(f"{missing} is not installed", hint=install_command(extra)) from error


def install_command(extra: str) -> str:
    """The pip command that adds an extra to this installation: by name, or from the clone that it came from.

    In a clone whose root is the current folder, `pip install '.[hf]'`.
    """
    source = _source()
    place = _NAME if source is None else "." if source == Path.cwd() else str(source)
    return f"pip install {shlex.quote(f'{place}[{extra}]')}"


def _source() -> Path | None:
    """The clone that runs or that was installed; None for a release."""
    import json  # only who lacks something pays for these
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").is_file():
        return root
    try:
        recorded = metadata.distribution(_NAME).read_text("direct_url.json")
        url = urlsplit(json.loads(recorded or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return None
    source = Path(unquote(url.path))
    return source if url.scheme == "file" and (source / "pyproject.toml").is_file() else None
