"""All engines by name."""

from __future__ import annotations

from typing import Final, NamedTuple

from treeopt.engines.format import Engine, Support
from treeopt.engines.growmap import SEQUOIA
from treeopt.engines.lengths import LLAMACPP, LMDEPLOY, SPECULATORS, TGI, TRANSFORMERS
from treeopt.engines.mlc import MLC
from treeopt.engines.openvino import OPENVINO
from treeopt.engines.paths import EAGLE1, HYDRA, MEDUSA, PATHS
from treeopt.engines.release import Release, parse_release, parse_wanted
from treeopt.engines.sglang import SGLANG
from treeopt.engines.trtllm import TENSORRT_LLM
from treeopt.engines.vllm import VLLM
from treeopt.errors import UnknownNameError

ENGINES: Final = (
    *(VLLM, SGLANG, TENSORRT_LLM, OPENVINO, MLC, LLAMACPP, TRANSFORMERS, TGI, LMDEPLOY, SPECULATORS),
    *(PATHS, MEDUSA, EAGLE1, HYDRA, SEQUOIA),  # a list without more says no more than that
)


class EngineAt(NamedTuple):
    """An engine at a release, with what that one reads."""

    engine: Engine
    version: str
    release: Release
    support: Support


def find_engine(text: str) -> EngineAt:
    """The engine that `NAME` or `NAME==VERSION` means, by its name or its title; without a version the newest one.

    Raises:
        UnknownNameError: no such engine; the hint lists them.
        InputError: not a version, or one that treeopt knows nothing about.
    """
    name, version = parse_wanted(text)
    engine = next((e for e in ENGINES if _letters(name) in (e.name, _letters(e.title))), None)
    if engine is None:
        raise UnknownNameError("engine", name, [e.name for e in ENGINES])
    release = engine.newest if version is None else parse_release(version)
    return EngineAt(engine, version or engine.checked, release, engine.support_at(release))


def _letters(name: str) -> str:
    """A name without what people write differently: `tensorrt-llm`, `tensorrt_llm`, `TensorRT-LLM`."""
    return "".join(filter(str.isalnum, name.lower()))
