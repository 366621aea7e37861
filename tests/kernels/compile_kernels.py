"""Compile kernels ahead of time, without a GPU: `python compile_kernels.py GROUP [--every]` prints a JSON line of each.

A process of its own: Triton decides at its import whether kernels are compiled or interpreted.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from treeopt.errors import InputError
from treeopt.kernels import _attention_triton, _compaction_triton, _step_triton
from treeopt.kernels.chip import CHIPS, Chip
from treeopt.kernels.compaction import BLOCK_BYTES, COMPACTION_WARPS, ROWS_AT_ONCE
from treeopt.kernels.config import TABLE, AttentionConfig, HeadShape, attention_lines, shared_bytes, split_dim
from treeopt.kernels.slicing import MERGE_PIECES, merge_rows
from treeopt.kernels.step import NODES_AT_ONCE

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
RESERVED_BYTES = 1024  # of shared memory per program
# The chip other than Hopper whose largest line a group compiles in the fast tests.
OTHERS = {"small": "sm_80", "128": "sm_100", "192": "sm_86", "256": "sm_89", "latent": "sm_120", "float32": "gfx942"}
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
    arch: str
    signature: dict[str, Any]
    constants: dict[str, Any]
    warps: int
    stages: int = 3
    registers: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def attention(
    shape: HeadShape,
    config: AttentionConfig,
    *,
    arch: str,
    load: str,
    dtype: str = "bf16",
    in_cache: bool = False,
    fp8: bool = False,
    window: int = 0,
) -> Variant:
    """The attention kernel of a line of the table; `load` is tma, paged (16 tokens) or contiguous."""
    size = 4 if dtype == "fp32" else 2
    (qk0, qk1), (v0, v1) = (split_dim(d, element_bytes=size) for d in shape)
    values, tile, chip = f"*{dtype}", f"{config.block_m}x{config.block_n}", CHIPS[arch]
    how = ("native" if chip.fp8 else "bits") if fp8 else ""
    cached = {"": dtype, "native": "fp8e4nv", "bits": "u8"}[how]
    descriptor = [f"tensordesc<{cached}[{config.block_n},{d}]>" for d in (qk0, v0)] if load == "tma" else [None, None]

    def tensor(name: str, *strides: str, kind: str = values) -> dict[str, str]:
        return {f"{name}_ptr": kind} | {f"stride_{stride}": "i32" for stride in strides}

    return Variant(
        name=f"attention {shape[0]}/{shape[1]} {dtype} {tile} {load}{' in cache' * in_cache}{' fp8' * fp8}"
        + " window" * (window > 0),
        kernel="attention_kernel",
        arch=arch,
        signature={
            **tensor("q", "qm", "qh"),
            **tensor("tree_k", "tkn", "tkh"),
            **tensor("tree_v", "tvn", "tvh"),
            **tensor("out", "om", "oh"),
            **tensor("k", "kp", "kn", "kh", kind=f"*{cached}"),
            **tensor("v", "vp", "vn", "vh", kind=f"*{cached}"),
            **dict(zip(("k_desc", "v_desc"), descriptor, strict=True)),
            **dict.fromkeys(("k_scale_ptr", "v_scale_ptr"), "*fp32" if fp8 else None),
            "stride_sh": "i32",
            "sinks_ptr": None,
            **tensor("table", "tb", kind="*i32"),
            "bits_ptr": "*i64",
            "depths_ptr": "*i32",
            "lse_ptr": "*fp32",
            **dict.fromkeys(("work_ptr", "spans_ptr", "tasks_ptr", "counters_ptr"), "*i32"),
            **dict.fromkeys(("partial_ptr", "partial_lse_ptr"), "*fp32"),
            **dict.fromkeys(("capacity", "num_tokens", "num_words", "num_items", "num_tiles", "num_programs"), "i32"),
            "sm_scale": "fp32",
        },
        constants={
            "NUM_KV_HEADS": 8,
            "GROUP_SIZE": 4,
            "GROUP_POW2": 4,
            "PAGE_SIZE": {"tma": 128, "paged": 16, "contiguous": 0}[load],
            "WINDOW": window,
            "SOFTCAP": 0.0,
            "TREE_IN_CACHE": in_cache,
            "V_IN_K": shape == (576, 512),
            "USE_TMA": load == "tma",
            "FP8": how,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "TAIL_N": config.tail_n,
            **dict(zip(("HEAD_DIM_0", "HEAD_DIM_1", "VALUE_DIM_0", "VALUE_DIM_1"), (qk0, qk1, v0, v1), strict=True)),
            "MERGE_PIECES": MERGE_PIECES,
            "MERGE_ROWS": merge_rows(shape.values),
            "PRECISION": "ieee" if chip.products == "mfma" else "tf32x3",
            "UPCAST": False,
        },
        warps=config.num_warps,
        stages=config.stages(paged=load != "contiguous"),
        registers=None if chip.products == "mfma" else config.maxnreg,
        facts={
            "load": load,
            "rows": config.block_m,
            "keys": config.block_n,
            "buffers": config.buffers,
            "programs_meant": config.programs,
            "shared_meant": shared_bytes(config, shape=shape, element_bytes=size, chip=chip),
        },
    )


def helpers(arch: str) -> Iterator[Variant]:
    """The two kernels of a step, and compaction."""
    yield Variant(
        name="ancestors",
        kernel="ancestors_kernel",
        arch=arch,
        signature={
            **dict.fromkeys(("parents_ptr", "offsets_ptr"), "*i32"),
            "bits_ptr": "*i64",
            "depths_ptr": "*i32",
            "num_words": "i32",
        },
        constants={"BLOCK": NODES_AT_ONCE},
        warps=4,
    )
    names = list(_step_triton.schedule_kernel.arg_names)
    shared_only = ("begin_ptr", "request_ptr", "group_ptr")
    for shared in (False, True):
        yield Variant(
            name=f"schedule{' with shared prefixes' * shared}",
            kernel="schedule_kernel",
            arch=arch,
            signature={
                name: None if name in shared_only and not shared else "*i32" if name.endswith("_ptr") else "i32"
                for name in names
                if name.islower()
            },
            constants={"BLOCK": 32, "PIECES": 8},
            warps=4,
        )
    for page in (0, 16):
        yield Variant(
            name=f"compaction {'paged' if page else 'contiguous'}",
            kernel="compaction_kernel",
            arch=arch,
            signature={
                "strips_ptr": "*i64",
                **dict.fromkeys(("accepted_ptr", "lengths_ptr", "table_ptr"), "*i32"),
                **dict.fromkeys(("stride_tb", "path_length"), "i32"),
            },
            constants={"PAGE_SIZE": page, "BLOCK_ROWS": ROWS_AT_ONCE, "BLOCK_BYTES": BLOCK_BYTES},
            warps=COMPACTION_WARPS,
        )


def loads(shape: HeadShape, element_bytes: int, chip: Chip) -> list[str]:
    """How K and V of a head shape may be read, the fastest first."""
    whole = all(split_dim(d, element_bytes=element_bytes)[1] == 0 for d in shape) and shape.keys == shape.values
    return ["tma", "paged", "contiguous"] if whole and chip.tma else ["paged", "contiguous"]


def variants(group: str, *, every: bool, chips: Sequence[str] = tuple(CHIPS)) -> Iterator[Variant]:
    """Of 128 dimensions every line for Hopper, with FP8 and a window; of every group its largest line for two chips.

    With `every`: all lines for all chips and ways to load, and with FP8, windows and the tree in the cache.
    """
    if group == "helpers":
        for arch in chips if every else ("sm_90",):
            yield from helpers(arch)
    for shape, size in GROUPS[group]:
        dtype = "bf16" if size == 2 else "fp32"
        for arch in chips:
            ways = loads(shape, size, CHIPS[arch])
            lines, by_pointers = (fitting(shape, size, CHIPS[arch], tma=tma) for tma in (True, False))
            if not every:
                if arch == "sm_90" and group == "128":
                    for config in lines:
                        yield attention(shape, config, arch=arch, load=ways[0])
                    yield attention(shape, by_pointers[-1], arch=arch, load="paged", window=1024)
                    yield attention(shape, lines[-1], arch=arch, load=ways[0], fp8=True)
                elif arch in ("sm_90", OTHERS.get(group)) and (shape, size) == GROUPS[group][0]:
                    yield attention(shape, lines[-1], arch=arch, load=ways[0], dtype=dtype)
                continue
            for load in ways:
                for config in lines if load == "tma" else by_pointers:
                    yield attention(shape, config, arch=arch, load=load, dtype=dtype)
            for config in by_pointers if size == 2 else ():
                yield attention(shape, config, arch=arch, load="paged", fp8=True)
                yield attention(shape, config, arch=arch, load="paged", window=1024, in_cache=True, dtype="fp16")


def fitting(shape: HeadShape, size: int, chip: Chip, *, tma: bool) -> Sequence[AttentionConfig]:
    """The lines that a chip takes; none where no line fits it."""
    try:
        return attention_lines(shape=shape, element_bytes=size, chip=chip, tma=tma)
    except InputError:
        return ()


def compiled(variant: Variant) -> dict[str, Any]:
    """What a variant compiles to."""
    modules = (_attention_triton, _compaction_triton, _step_triton)
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
    binary = triton.compile(source, target=target(variant.arch), options=options)
    resources = _amd_resources if variant.arch.startswith("gfx") else _resources
    return (
        {"name": variant.name, "arch": variant.arch, "warps": variant.warps}
        | variant.facts
        | resources(binary, variant)
    )


def target(arch: str) -> GPUTarget:
    """The chip as Triton names it."""
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, CHIPS[arch].warp)
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def _amd_resources(binary: Any, variant: Variant) -> dict[str, Any]:
    """What the assembler's own table says."""
    found = {
        name: int(re.findall(rf"\.{name}:\s+(\d+)", binary.asm["amdgcn"])[0])
        for name in ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size")
    }
    chip, shared = CHIPS[variant.arch], int(binary.metadata.shared)
    per_warp = -(-found["vgpr_count"] // 8) * 8 * chip.warp
    return {
        "registers": found["vgpr_count"],
        "stack": found["private_segment_fixed_size"],
        "spills": found["vgpr_spill_count"],
        "shared": shared,
        "shared_limit": chip.shared_block,
        "programs": min(chip.registers_sm // (per_warp * variant.warps), chip.shared_sm // max(shared, 1)),
        "products": sorted(set(re.findall(r"\bv_(mfma)_", binary.asm["amdgcn"]))),
    }


def _waits(sass: str, width: str) -> bool:
    """Whether a barrier stands between the loads of this width and the stores."""
    loads, stores = ([m.start() for m in re.finditer(rf"\b{op}\S*\{width}\b", sass)] for op in ("LDG", "STG"))
    return bool(loads and stores) and bool(re.search(r"\bBAR\b", sass[max(loads) : min(stores)]))


def _merges_in_order(ptx: str) -> bool:
    """Whether a program counts itself behind a barrier with release order, and whoever merges acquires that count."""
    counted = re.search(r"\bbar\.sync(?:(?!bar\.sync|st\.global)[^\x00])*?atom\.global\.gpu\.release", ptx)
    return bool(counted) and bool(re.search(r"(?:ld|atom)\.global\.gpu\.acquire[^\x00]*?bar\.sync", ptx))


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
    chip, per_warp = CHIPS[variant.arch], -(-registers // 8) * 8 * 32
    return {
        "registers": registers,
        "stack": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "spills": len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        "shared": shared,
        "shared_limit": chip.shared_block,
        "programs": min(
            chip.registers_sm // (per_warp * variant.warps),
            chip.shared_sm // (shared + RESERVED_BYTES),
            chip.warps_sm // variant.warps,
        ),
        "products": sorted(set(re.findall(r"\b(HGMMA|UTC\w*MMA|HMMA)\b", sass))),
        "wide_loads": len(re.findall(r"\bLDG(?:STS)?\S*\.128", sass)),
        "wide_loads_needed": _wide_loads(binary.asm["ttgir"], variant.warps),
        "descriptor_loads": len(re.findall(r"\bUTMALDG", sass)),
        "waits": {width: _waits(sass, width) for width in (".128", ".U8")},
        "merges_in_order": _merges_in_order(binary.asm["ptx"]),
    }


def main() -> None:
    """Print one line per variant of the groups."""
    parser = argparse.ArgumentParser()
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--chips", nargs="+", choices=CHIPS, default=list(CHIPS))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    todo = [v for group in options.groups for v in variants(group, every=options.every, chips=options.chips)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(compiled, todo):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
