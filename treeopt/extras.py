"""Libraries that only some commands need, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from treeopt.errors import InputError


def require(module: str, *, extra: str) -> Any:
    """Import a module of an optional dependency.

    Raises:
        InputError: it is not installed; the hint names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise InputError(f"{missing} is not installed", hint=f"pip install 'treeopt[{extra}]'") from error
