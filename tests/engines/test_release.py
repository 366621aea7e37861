from __future__ import annotations

import pytest

from treeopt.engines.format import Engine
from treeopt.engines.registry import ENGINES, find_engine
from treeopt.engines.release import Release, WantedEngine, is_within, parse_release, parse_wanted
from treeopt.errors import InputError


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.24.0", (0, 24, 0)),
        ("0.24", (0, 24, 0)),
        ("v1.3.0rc27", (1, 3, 0)),
        ("2026.4.1.0", (2026, 4, 1)),
        ("1", (1, 0, 0)),
        ("0.33.0+cpu", (0, 33, 0)),
    ],
)
def test_releases(text: str, release: tuple[int, int, int]) -> None:
    assert parse_release(text) == release


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_found_by_its_name_and_its_title(engine: Engine) -> None:
    assert find_engine(engine.name).engine is engine
    assert find_engine(engine.title).engine is engine


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tensorrt-llm", "trtllm"),
        ("tensorrt_llm==1.3.0", "trtllm"),  # as on PyPI
        ("llama.cpp", "llamacpp"),
        ("mlc-llm", "mlc"),
        ("OpenVINO-GenAI", "openvino"),
    ],
)
def test_other_spellings(text: str, name: str) -> None:
    assert find_engine(text).engine.name == name


def test_names_with_and_without_a_version() -> None:
    assert parse_wanted("vLLM==0.20.2") == WantedEngine("vllm", "0.20.2")
    assert parse_wanted("sglang") == WantedEngine("sglang", None)
    assert Release(0, 9, 2) < Release(0, 10, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm>=0.24", "names no release"),
        ("vllm==latest", "is not a version"),
        ("vllm==", "is not a version"),
        ("vllm==0.9.2", "vLLM 0.9.2 is not known"),
        ("sglang==0.4.0", "SGLang 0.4.0 is not known"),
        ("vlm", "unknown engine 'vlm'"),
    ],
)
def test_names_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_engine(text)


@pytest.mark.parametrize(
    ("text", "formats"),
    [
        ("vllm", ["chain", "schedule"]),
        ("vllm==0.24.0", ["chain", "schedule"]),
        ("vllm==0.23.9", ["chain"]),
        ("vllm==0.21.0", ["chain"]),
        ("vllm==0.20.2", ["chain", "token-tree"]),
        ("vllm==0.10.1", ["chain", "token-tree"]),
        ("trtllm", ["length", "schedule", "triple"]),
        ("trtllm==1.4.0rc1", ["length", "schedule", "triple"]),
        ("trtllm==1.3.0rc27", ["choices", "length", "schedule", "triple"]),
        ("trtllm==1.2.1", ["choices", "length"]),
        ("sglang", ["ngram", "block", "dspark", "triple", "adaptive"]),
        ("sglang==0.5.22", ["ngram", "block", "triple", "adaptive"]),
        ("sglang==0.5.13", ["ngram", "block", "triple", "adaptive"]),
        ("sglang==0.5.12", ["ngram", "block", "triple"]),
        ("sglang==0.5.10", ["triple"]),
    ],
)
def test_what_each_release_reads(text: str, formats: list[str]) -> None:
    assert [form.name for form in find_engine(text).formats] == formats


@pytest.mark.parametrize(("patch", "inside"), [(0, False), (1, True), (4, True), (5, False)])
def test_ranges_are_half_open(patch: int, inside: bool) -> None:
    assert is_within(Release(1, 0, patch), Release(1, 0, 1), Release(1, 0, 5)) is inside
    assert is_within(Release(1, 0, patch), None, None)


def test_every_engine_has_a_newest_release_that_it_supports() -> None:
    assert len({e.name for e in ENGINES}) == len(ENGINES)
    assert all(find_engine(e.name).formats for e in ENGINES)
