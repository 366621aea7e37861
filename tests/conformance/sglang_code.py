"""SGLang's own functions and files out of the wheel, run on the CPU with stand-ins around them."""

from __future__ import annotations

import ast
import importlib.util
import sys
import types
from collections.abc import Iterable
from typing import Any

import pytest
from conformance import wheels

VERSION = "0.5.23"


def text(path: str) -> str:
    return wheels.text(wheels.wheel("sglang", VERSION), path)


def adaptive(version: str) -> types.SimpleNamespace:
    """A release's adaptive lengths; what the file imports of SGLang is not used by the routing, and does nothing."""
    archive = wheels.wheel("sglang", version)
    tree = ast.parse(wheels.text(archive, "sglang/srt/speculative/adaptive_spec_params.py"))
    code: dict[str, Any] = {"__name__": "adaptive_spec_params"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sglang"):
            code |= {alias.name: lambda *_, **__: None for alias in node.names}
            node.module, node.names = "types", [ast.alias("ModuleType")]
    exec(compile(ast.fix_missing_locations(tree), "adaptive_spec_params.py", "exec"), code)
    return types.SimpleNamespace(**{k: v for k, v in code.items() if not k.startswith("__")})


def define(module: types.ModuleType, path: str, names: Iterable[str]) -> None:
    """Define functions and methods of a file in a module, without their decorators (torch.compile)."""
    wanted = set(names)
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            node.decorator_list = []
            annotations = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
            tree = ast.fix_missing_locations(ast.Module([annotations, node], []))
            exec(compile(tree, path, "exec"), module.__dict__)
            wanted.remove(node.name)
    assert not wanted, f"{path} lacks {wanted}"


def load(path: str, name: str) -> Any:
    """A whole file as a module; Triton reads its source, so it must lie on disk."""
    target = wheels.CACHE / f"sglang-{VERSION}" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text(path))
    spec = importlib.util.spec_from_file_location(name, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def stand_in(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def spec_utils() -> types.ModuleType:
    """The functions that pick what is expanded and what is verified."""
    import torch

    def fast_topk(values: Any, topk: int, dim: int) -> Any:
        return torch.topk(values, topk, dim=dim)

    def nothing(*_: Any, **__: Any) -> None:
        pass

    common = {"torch": torch, "fast_topk": fast_topk, "maybe_detect_oob": nothing, "maybe_detect_nan": nothing}
    utils = stand_in("sglang.srt.speculative.spec_utils", **common, maybe_detect_inf=nothing)
    define(
        utils,
        "sglang/srt/speculative/spec_utils.py",
        ["select_top_k_tokens", "_select_top_k_tokens_first", "_select_top_k_tokens_later"],
    )
    eagle = stand_in("sglang.srt.speculative.eagle_utils", **common)
    define(eagle, "sglang/srt/speculative/eagle_utils.py", ["organize_draft_results", "per_step_draft_out_cache_loc"])
    utils.organize_draft_results = eagle.organize_draft_results  # type: ignore[attr-defined]
    return utils


@pytest.fixture
def own_modules() -> Iterable[None]:
    """Take the stand-ins out of the interpreter again."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("sglang"):
            del sys.modules[name]
