"""Compile kernels ahead of time, without a GPU: `python compile_kernels.py GROUP [--every]` prints a JSON line of each.

A process of its own: Triton decides at its import whether kernels are compiled or interpreted.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from treeopt.kernels import _attention_triton, _compaction_triton, _merge_triton, _step_triton
from treeopt.kernels.attention import MERGE_PIECES, merge_rows
from treeopt.kernels.compaction import BLOCK_BYTES, COMPACTION_WARPS, ROWS_AT_ONCE
from treeopt.kernels.config import TABLE, AttentionConfig, HeadShape, attention_lines, split_dim

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # of one program at most
SHARED_BYTES_SM = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
RESERVED_BYTES, REGISTERS_SM, WARPS_SM = 1024, 65536, 64
GROUPS: dict[str, list[tuple[HeadShape, int]]] = {
    "small": [(HeadShape(64, 64), 2), (HeadShape(96, 96), 2)],
    "128": [(HeadShape(128, 128), 2)],
    "192": [(HeadShape(192, 192), 2), (HeadShape(192, 128), 2)],
    "256": [(HeadShape(256, 256), 2)],
    "latent": [(HeadShape(576, 512), 2)],
    "float32": [key for key in TABLE if key[1] == 4],
    "helpers": [],
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One binary: a kernel, its arguments' types and constants, and the chip."""

    name: str
    kernel: str
    arch: int
    signature: dict[str, Any]
    constants: dict[str, Any]
    warps: int
    stages: int = 3
    registers: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def attention(
    shape: HeadShape, config: AttentionConfig, *, arch: int, load: str, dtype: str = "bf16", in_cache: bool = False
) -> Variant:
    """The attention kernel of a line of the table; `load` is tma, paged (16 tokens) or contiguous."""
    (qk0, qk1), (v0, v1) = (split_dim(d, element_bytes=4 if dtype == "fp32" else 2) for d in shape)
    values = f"*{dtype}"
    descriptor = [f"tensordesc<{dtype}[{config.block_n},{d}]>" for d in (qk0, v0)]

    def tensor(name: str, *strides: str, kind: str = values) -> dict[str, str]:
        return {f"{name}_ptr": kind} | {f"stride_{stride}": "i32" for stride in strides}

    tile = f"{config.block_m}x{config.block_n}"
    return Variant(
        name=f"attention {shape[0]}/{shape[1]} {dtype} {tile} {load}{' in cache' * in_cache}",
        kernel="attention_kernel",
        arch=arch,
        signature={
            **tensor("q", "qm", "qh"),
            **tensor("tree_k", "tkn", "tkh"),
            **tensor("tree_v", "tvn", "tvh"),
            **tensor("out", "om", "oh"),
            **tensor("k", "kp", "kn", "kh"),
            **tensor("v", "vp", "vn", "vh"),
            **{
                name: kind if load == "tma" else None
                for name, kind in zip(("k_desc", "v_desc"), descriptor, strict=True)
            },
            **tensor("table", "tb", kind="*i32"),
            "capacity": "i32",
            "work_ptr": "*i32",
            "bits_ptr": "*i64",
            "num_words": "i32",
            "lse_ptr": "*fp32",
            "partial_ptr": "*fp32",
            "partial_lse_ptr": "*fp32",
            "num_rows": "i32",
            "num_tokens": "i32",
            "sm_scale": "fp32",
        },
        constants={
            "GROUP_SIZE": 4,
            "GROUP_POW2": 4,
            "PAGE_SIZE": {"tma": 128, "paged": 16, "contiguous": 0}[load],
            "TREE_IN_CACHE": in_cache,
            "V_IN_K": shape == (576, 512),
            "USE_TMA": load == "tma",
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "TAIL_N": config.tail_n,
            **dict(zip(("HEAD_DIM_0", "HEAD_DIM_1", "VALUE_DIM_0", "VALUE_DIM_1"), (qk0, qk1, v0, v1), strict=True)),
            "PRECISION": "tf32x3",
            "UPCAST": False,
        },
        warps=config.num_warps,
        stages=config.stages(paged=load != "contiguous"),
        registers=config.maxnreg,
        facts={
            "load": load,
            "rows": config.block_m,
            "keys": config.block_n,
            "buffers": config.buffers,
            "programs_meant": config.programs,
        },
    )


def helpers(arch: int) -> Iterator[Variant]:
    """The merge, the two kernels of a step, and compaction."""
    for v0, v1 in sorted({split_dim(shape.values, element_bytes=size) for shape, size in TABLE}):
        yield Variant(
            name=f"merge {v0}{f' + {v1}' * bool(v1)}",
            kernel="merge_kernel",
            arch=arch,
            signature={
                "parts": ("*fp32", "*fp32"),
                "out": ("*bf16", "i32", "i32"),
                "lse": "*fp32",
                "spans": "*i32",
                "offsets": "*i32",
                "max_rows": "i32",
            },
            constants={"GROUP": 4, "V0": v0, "V1": v1, "ROWS": merge_rows(v0), "PIECES": MERGE_PIECES},
            warps=4,
        )
    for words in (1, 4):
        yield Variant(
            name=f"ancestors {words * 64}",
            kernel="ancestors_kernel",
            arch=arch,
            signature={"parents": "*i32", "offsets": "*i32", "bits": "*i64", "depths": "*i32"},
            constants={"WORDS": words, "WORDS_POW2": words, "NODES": 64},
            warps=4,
        )
    ints = ("requests", "items", "slots", "min_chunk", "overhead")
    yield Variant(
        name="schedule 256",
        kernel="schedule_kernel",
        arch=arch,
        signature=dict.fromkeys(("lengths", "offsets", "work", "spans"), "*i32") | dict.fromkeys(ints, "i32"),
        constants={"SPLITS": 64, "KEYS": 64, "REQUESTS": 256, "ITEMS": 128},
        warps=4,
    )
    for page in (0, 16):
        yield Variant(
            name=f"compaction {'paged' if page else 'contiguous'}",
            kernel="compaction_kernel",
            arch=arch,
            signature={
                "strips": "*i64",
                "accepted": "*i32",
                "lengths": "*i32",
                "table": ("*i32", "i32"),
                "path": "i32",
            },
            constants={"PAGE": page, "NODES": ROWS_AT_ONCE, "BYTES": BLOCK_BYTES},
            warps=COMPACTION_WARPS,
        )


def loads(shape: HeadShape, element_bytes: int) -> list[str]:
    """How K and V of a head shape may be read, the fastest first."""
    whole = all(split_dim(d)[1] == 0 for d in shape) and element_bytes == 2
    return ["tma", "paged", "contiguous"] if whole else ["paged", "contiguous"]


def variants(group: str, *, every: bool) -> Iterator[Variant]:
    """Every line for sm_90, as it reads fastest (D = 128 also by page numbers); one line per group for other chips.

    With `every`: all lines for all chips and ways to load, on sm_90 also float16 and with the tree in the cache.
    """
    if group == "helpers":
        for arch in (80, 90, 100):
            yield from helpers(arch)
    for shape, size in GROUPS[group]:
        ways, dtype = loads(shape, size), "bf16" if size == 2 else "fp32"
        lines = {arch: attention_lines(shape=shape, element_bytes=size, chip=arch // 10) for arch in (80, 90, 100)}
        for config in lines[90]:
            for load in ways if every else ["tma", "paged"] if group == "128" else ways[:1]:
                yield attention(shape, config, arch=90, load=load, dtype=dtype)
        if not every:
            if (shape, size) != GROUPS[group][0]:
                continue
            yield attention(shape, lines[80][-1], arch=80, load="contiguous", dtype=dtype)
            yield attention(shape, lines[100][-1], arch=100, load=ways[0], dtype=dtype, in_cache=True)
            continue
        for arch, load in [(a, way) for a in (80, 100) for way in ways if (a, way) != (80, "tma")]:
            for config in lines[arch]:
                yield attention(shape, config, arch=arch, load=load, dtype=dtype)
        for config in lines[90]:
            yield attention(shape, config, arch=90, load=ways[0], dtype="fp16" if size == 2 else dtype, in_cache=True)


def compiled(variant: Variant) -> dict[str, Any]:
    """What a variant compiles to."""
    modules = (_attention_triton, _compaction_triton, _merge_triton, _step_triton)
    function = next(getattr(m, variant.kernel) for m in modules if hasattr(m, variant.kernel))
    signature = {name: kind or "constexpr" for name, kind in variant.signature.items()}
    constants = {name: None for name, kind in variant.signature.items() if kind is None} | variant.constants
    signature |= dict.fromkeys(variant.constants, "constexpr")
    names = list(signature)
    # What Triton sees at a launch: pointers and strides are multiples of 16.
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (name.startswith("stride_") and kind != "constexpr")
    }
    source = ASTSource(function, signature, {(names.index(n),): v for n, v in constants.items()}, attributes)
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    if variant.registers:
        options["maxnreg"] = variant.registers
    binary = triton.compile(source, target=GPUTarget("cuda", variant.arch, 32), options=options)
    return (
        {"name": variant.name, "arch": variant.arch, "warps": variant.warps}
        | variant.facts
        | _resources(binary, variant)
    )


def _waits(sass: str, width: str) -> bool:
    """Whether a barrier stands between the loads of this width and the stores."""
    loads, stores = ([m.start() for m in re.finditer(rf"\b{op}\S*\{width}\b", sass)] for op in ("LDG", "STG"))
    return bool(loads and stores) and bool(re.search(r"\bBAR\b", sass[max(loads) : min(stores)]))


def _wide_loads(ir: str, warps: int) -> int:
    """16-byte loads of a thread in the program's loads of vectors; tiles of fewer bytes per thread are left out."""
    loads = r"(?:tt\.load|ttg\.async_copy_global_to_local)[^\n]*?tensor<(\d+)x(\d+)x!tt\.ptr<(\w+)>"
    size = {"bf16": 2, "f16": 2, "f32": 4, "i32": 4}
    return sum(int(n) * int(d) * size[t] // (16 * 32 * warps) for n, d, t in re.findall(loads, ir) if t in size)


def _resources(binary: Any, variant: Variant) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage, sass = (
            subprocess.run([TOOLS / "cuobjdump", flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("-res-usage", "-sass")
        )
    registers = int(re.findall(r"REG:(\d+)", usage)[0])
    shared = int(binary.metadata.shared)
    per_warp = -(-registers // 8) * 8 * 32
    return {
        "registers": registers,
        "stack": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        "shared": shared,
        "shared_limit": SHARED_BYTES[variant.arch],
        "programs": min(
            REGISTERS_SM // (per_warp * variant.warps),
            SHARED_BYTES_SM[variant.arch] // (shared + RESERVED_BYTES),
            WARPS_SM // variant.warps,
        ),
        "products": sorted(set(re.findall(r"\b(HGMMA|UTC\w*MMA|HMMA)\b", sass))),
        "wide_loads": len(re.findall(r"\bLDG(?:STS)?\S*\.128", sass)),
        "wide_loads_needed": _wide_loads(binary.asm["ttgir"], variant.warps),
        "descriptor_loads": len(re.findall(r"\bUTMALDG", sass)),
        "waits": {width: _waits(sass, width) for width in (".128", ".U8")},
    }


def main() -> None:
    """Print one line per variant of the groups."""
    parser = argparse.ArgumentParser()
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    todo = [v for group in options.groups for v in variants(group, every=options.every)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(compiled, todo):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
