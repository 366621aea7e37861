"""What a GPU has: processors, registers, shared memory, and what its instructions do per clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from treeopt.kernels.tensors import torch

# Matrix products of warpgroups (Hopper), of tensor memory (Blackwell for data centres), of warps (every other NVIDIA
# GPU), and AMD's.
Products = Literal["wgmma", "tcgen05", "mma", "mfma"]
KB: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What tiles are chosen and prefixes are cut by.

    Fields:
        products: its instructions for matrix products.
        tma: whether it fetches tiles through descriptors (tensor memory accelerator).
        fp8: whether it converts e4m3 by an instruction.
        shared_block: bytes of shared memory (AMD: LDS) that one program may have.
        shared_sm: bytes of a multiprocessor.
        registers_sm: 32-bit registers of a multiprocessor.
        warps_sm: warps that a multiprocessor holds.
        warp: lanes of a warp.
        processors: multiprocessors.
        flops_per_clock: dense sixteen-bit operations of a multiprocessor.
        dram_bytes_per_clock: memory traffic of the whole chip: 4.3 TB/s at 1.75 GHz are 2457.
    """

    products: Products
    tma: bool = False
    fp8: bool = True
    shared_block: int
    shared_sm: int
    registers_sm: int = 65536
    warps_sm: int = 64
    warp: int = 32
    processors: int
    flops_per_clock: int
    dram_bytes_per_clock: int


# The chips that lines are compiled for; rates are of datasheets, the H200's memory rate is a measured copy.
CHIPS: Final[dict[str, Chip]] = {
    "sm_80": Chip(
        products="mma",
        fp8=False,
        shared_block=163 * KB,
        shared_sm=164 * KB,
        processors=108,
        flops_per_clock=2048,
        dram_bytes_per_clock=1103,
    ),
    "sm_86": Chip(
        products="mma",
        fp8=False,
        shared_block=99 * KB,
        shared_sm=100 * KB,
        warps_sm=48,
        processors=72,
        flops_per_clock=1024,
        dram_bytes_per_clock=354,
    ),
    "sm_89": Chip(
        products="mma",
        shared_block=99 * KB,
        shared_sm=100 * KB,
        warps_sm=48,
        processors=142,
        flops_per_clock=1024,
        dram_bytes_per_clock=343,
    ),
    "sm_90": Chip(
        products="wgmma",
        tma=True,
        shared_block=227 * KB,
        shared_sm=228 * KB,
        processors=132,
        flops_per_clock=4096,
        dram_bytes_per_clock=2457,
    ),
    "sm_100": Chip(
        products="tcgen05",
        tma=True,
        shared_block=227 * KB,
        shared_sm=228 * KB,
        processors=148,
        flops_per_clock=8192,
        dram_bytes_per_clock=4324,
    ),
    "sm_120": Chip(
        products="mma",
        tma=True,
        shared_block=99 * KB,
        shared_sm=100 * KB,
        warps_sm=48,
        processors=170,
        flops_per_clock=1024,
        dram_bytes_per_clock=746,
    ),
    "gfx942": Chip(
        products="mfma",
        shared_block=64 * KB,
        shared_sm=64 * KB,
        registers_sm=131072,
        warps_sm=32,
        warp=64,
        processors=304,
        flops_per_clock=2048,
        dram_bytes_per_clock=2523,
    ),
    "gfx950": Chip(
        products="mfma",
        shared_block=160 * KB,
        shared_sm=160 * KB,
        registers_sm=131072,
        warps_sm=32,
        warp=64,
        processors=256,
        flops_per_clock=4096,
        dram_bytes_per_clock=3333,
    ),
}
INTERPRETED: Final = replace(CHIPS["sm_90"], processors=4)


def chip_of(device: object) -> Chip:
    """What the GPU at hand has: sizes as torch reads them from it, rates of the nearest chip of its kind.

    Off a GPU, where only Triton's interpreter runs, a Hopper of four processors.
    """
    if torch.device(device).type != "cuda":
        return INTERPRETED
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return _described(_amd(found.gcnArchName), found)
    return _described(_nvidia((found.major, found.minor)), found)


def _amd(name: str) -> Chip:
    return CHIPS.get(name.partition(":")[0], CHIPS["gfx942"])


def _nvidia(capability: tuple[int, int]) -> Chip:
    """By what a compute capability has: only 9.0 has warpgroup products, only 10.x tensor memory."""
    if capability[0] in (9, 10):
        return CHIPS["sm_90" if capability[0] == 9 else "sm_100"]
    if capability >= (11, 0):
        return CHIPS["sm_120"]
    return CHIPS["sm_89" if capability >= (8, 9) else "sm_86" if capability > (8, 0) else "sm_80"]


def _described(nearest: Chip, found: Any) -> Chip:
    """`nearest` with the sizes that the device says; versions of torch differ in how much they tell."""
    clock_khz = getattr(found, "clock_rate", 0)
    # Two transfers per clock; nine tenths of the datasheet's rate is what a copy reaches.
    per_s = 0.9 * 2 * 1e3 * getattr(found, "memory_clock_rate", 0) * getattr(found, "memory_bus_width", 0) / 8
    return replace(
        nearest,
        processors=found.multi_processor_count,
        shared_block=getattr(found, "shared_memory_per_block_optin", 0) or nearest.shared_block,
        shared_sm=getattr(found, "shared_memory_per_multiprocessor", 0) or nearest.shared_sm,
        registers_sm=getattr(found, "regs_per_multiprocessor", 0) or nearest.registers_sm,
        dram_bytes_per_clock=round(per_s / (1e3 * clock_khz)) if per_s and clock_khz else nearest.dram_bytes_per_clock,
    )
