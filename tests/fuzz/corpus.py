"""Small files of every kind that a command reads, written anew into a folder, the same bytes each time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from acceptance.importers.samples import SAMPLES
from golden.running import INPUTS, keep_up

from treeopt.files.npz import npz_bytes

ROOT: Final = Path(__file__).resolve().parents[2]
PROFILES: Final = ROOT / "profiles"
HARDWARE: Final = PROFILES / "hardware" / "h100-sxm-vllm-0.24.yaml"
TESTS: Final = ROOT / "tests"
ENGINE_FILES: Final = TESTS / "engines" / "golden"
HIDDEN: Final = 16

# Inputs of the golden tests that are no evidence of engines.
_OTHERS: Final = {
    "plan": ("plan.yaml", "chains.yaml", "triples.yaml"),
    "tree": ("choices.json", "tree.yaml"),
    "engine": ("vllm-config.json", "sglang-flags.txt"),
    "ranks": ("counts.yaml", "more-counts.yaml", "paths.yaml", "position.yaml", "mean.yaml"),
    "cost": ("vllm-table.json", "sglang-table.json", "steps.csv"),
    "rows": ("gemm.csv", "attention.csv"),
    "steps": ("steps.csv", "sglang_bench_speculative_output.jsonl", "trtllm_iteration_stats.json"),
    "model": ("config.json",),
    "prompts": ("prompts.jsonl",),
}


class Corpus:
    """The files, and which of them are of a kind; a name may be a folder's."""

    def __init__(self, folder: Path, *, torch: bool) -> None:
        self.folder = folder
        self.kinds: dict[str, list[str]] = {}
        shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
        for kind, names in _OTHERS.items():
            self.kinds[kind] = list(names)
        known = {name for names in _OTHERS.values() for name in names} | {"bad-ranks.yaml"}
        self.kinds["metrics"] = sorted(path.name for path in INPUTS.iterdir() if path.name not in known)
        for writer in (_shipped, _importers, _engines, _traces, _dumps, _rows, _configs):
            for kind, path in writer(folder):
                self.kinds.setdefault(kind, []).append(path.name)
        for kind, path in _of_torch(folder) if torch else ():
            self.kinds.setdefault(kind, []).append(path.name)
        keep_up(folder)

    @property
    def names(self) -> list[str]:
        """All files and folders."""
        return sorted(path.name for path in self.folder.iterdir())


def _copied(source: Path, folder: Path, name: str = "") -> Path:
    target = folder / (name or source.name)
    shutil.copyfile(source, target)
    return target


def _shipped(folder: Path) -> Iterator[tuple[str, Path]]:
    for name in ("h100-sxm.yaml", "a10.yaml", HARDWARE.name):
        yield "hardware", _copied(PROFILES / "hardware" / name, folder)
    _copied(HARDWARE.with_suffix(".npz"), folder)
    for name in ("llama-3.2-1b.yaml", "qwen3-30b-a3b.yaml"):
        yield "model", _copied(PROFILES / "models" / name, folder)
    for path in (PROFILES / "ranks" / "example.yaml", *sorted((PROFILES / "ranks" / "published").glob("*.yaml"))[::9]):
        yield "ranks", _copied(path, folder)
    for path in sorted((TESTS / "plan" / "version_1").glob("*.yaml")):
        yield "plan", _copied(path, folder)


def _importers(folder: Path) -> Iterator[tuple[str, Path]]:
    for name, data in SAMPLES.items():
        path = folder / f"sample-{name}.txt"
        path.write_bytes(data)
        yield "metrics", path


def _engines(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(ENGINE_FILES.iterdir()):
        yield "engine", _copied(path, folder, f"engine-{path.name}")


def trace_arrays(seed: int = 0, *, documents: int = 4, rows: int = 12, depth: int = 4) -> dict[str, Any]:
    """A trace of which every array is there."""
    rng = np.random.default_rng(seed)
    rank = rng.choice([-1, 0, 0, 0, 1, 1, 2, 5], size=(documents * rows, depth)).astype(np.int16)
    top = np.sort(rng.dirichlet(np.ones(12), size=rank.shape)[:, :, :10])[:, :, ::-1].astype(np.float32)
    return {
        "rank": rank,
        "doc_id": np.repeat(np.arange(documents), rows),
        "pos": np.tile(np.arange(rows), documents),
        "topk_prob": top,
        "conditions": np.array(json.dumps({"target": "t", "drafter": "d", "temperature": 0.0, "rule": "greedy"})),
    }


def _traces(folder: Path) -> Iterator[tuple[str, Path]]:
    arrays = trace_arrays()
    path = folder / "trace.npz"
    path.write_bytes(npz_bytes(arrays))
    yield "trace", path
    bare = {name: arrays[name] for name in ("rank", "doc_id", "pos")}
    lines = [
        json.dumps(dict(zip(bare, (v.tolist() for v in row), strict=True))) for row in zip(*bare.values(), strict=True)
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    yield "trace", path
    shards = folder / "shards"
    shards.mkdir(exist_ok=True)
    for i in range(2):
        (shards / f"{i}.npz").write_bytes(npz_bytes(trace_arrays(i + 1)))
    yield "trace", shards
    path = folder / "of-trace.yaml"
    path.write_text("format: treeopt.ranks/1\nname: of-trace\ntrace: trace.npz\n")
    yield "ranks", path
    if find_spec("pyarrow") is None:
        return
    import pyarrow
    from pyarrow import parquet

    path = folder / "trace.parquet"
    parquet.write_table(pyarrow.table({name: array.tolist() for name, array in bare.items()}), path)
    yield "trace", path


def _dumps(folder: Path) -> Iterator[tuple[str, Path]]:
    from verify.test_diagnose import right

    for name in ("dump.npz", "dump.json"):
        right().save(folder / name)
        yield "dump", folder / name
    path = folder / "dumped.yaml"
    path.write_text("format: treeopt.tree/1\npaths: [[0], [1], [0, 0], [1, 0], [1, 1], [1, 1, 0]]\n")
    yield "tree", path


def _rows(folder: Path) -> Iterator[tuple[str, Path]]:
    rows = [
        {"operator": "gemm", "dtype": "fp32", "m": m, "n": n, "k": 64, "time_s": 1e-5 * (1 + m * n / 4096)}
        for m in (1, 2, 4, 8, 16, 32)
        for n in (64, 128, 256)
    ]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "device": "toy"}) + "\n" for row in rows))
    yield "rows", path
    path = folder / "measured.csv"
    path.write_text(
        "batch,k,k_max,context,step_ms,accept_len,n,low,high\n1,0,0,100,7.5,1.0,100,7.4,7.6\n"
        "1,3,3,100,9.0,2.5,100,8.9,9.1\n4,0,0,100,8.0,1.0,400,7.9,8.1\n4,3,3,100,10.0,2.4,400,,\n"
    )
    yield "cost", path
    yield "steps", path
    yield "measured", path


def _configs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Config files of more kinds of models, and of a head."""
    llama = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "vocab_size": 32000,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
    }
    experts = {**llama, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    quantised = {**llama, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    nested = {"model_type": "gemma3", "text_config": {**llama, "sliding_window": 1024, "layer_types": []}}
    for name, value in (("llama", llama), ("experts", experts), ("fp8", quantised), ("nested", nested)):
        path = folder / f"config-{name}.json"
        path.write_text(json.dumps(value))
        yield "model", path
    path = folder / "head.json"
    path.write_text(json.dumps({**llama, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}))
    yield "head", path
    path = folder / "three.jsonl"
    lines = [{"prompt": "one two"}, {"messages": [{"role": "user", "content": "hello"}]}, {"token_ids": [1, 2, 3]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    yield "prompts", path
    path = folder / "ids.jsonl"
    path.write_text('{"token_ids": [1, 2, 3]}\n{"token_ids": [4, 5]}\n')
    yield "prompts", path


def _of_torch(folder: Path) -> Iterator[tuple[str, Path]]:
    """Weights, where the libraries that read them are installed."""
    import torch
    from collect.conftest import save_llama
    from safetensors.torch import save_file

    torch.manual_seed(0)
    yield "target", save_llama(folder / "target", seed=1, layers=3)
    yield "target", save_llama(folder / "small", seed=2)
    medusa = folder / "medusa"
    medusa.mkdir()
    weights = {f"{i}.0.linear.weight": torch.zeros(HIDDEN, HIDDEN) for i in range(2)}
    weights |= {f"{i}.0.linear.bias": torch.zeros(HIDDEN) for i in range(2)}
    weights |= {f"{i}.1.weight": torch.randn(50, HIDDEN) for i in range(2)}
    torch.save(weights, medusa / "medusa_lm_head.pt")
    (medusa / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    yield "drafter", medusa
    safe = folder / "medusa-safe"
    safe.mkdir()
    save_file(weights, safe / "medusa_lm_head.safetensors")
    (safe / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    yield "drafter", safe
    path = folder / "growmap.pt"
    torch.save({"roots": [[0], [1, 2]], "branches": [[2], [0, 0]], "Successors": [[1, 2], [], []]}, path)
    yield "engine", path
    path = folder / "heads_accuracy.pt"
    torch.save([[torch.ones(6, dtype=torch.bool) for _ in range(10)] for _ in range(3)], path)
    yield "metrics", path
