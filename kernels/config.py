"""Tile sizes of the attention kernel, by head shape, element size, rows and chip; chosen from what they compile to.

`docs/kernels.md` lists registers, shared memory and programs per multiprocessor of every line. None has been timed yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from treeopt.kernels.chip import CHIPS, Chip, Products
from treeopt.kernels.tensors import wrong

REGISTERS: Final = 65536  # of a multiprocessor
WARPGROUP_ROWS: Final = 64  # least rows of a warpgroup's product
DRIVER_BYTES: Final = 1 << 10  # of shared memory, kept from every program
RESERVE: Final = 6 << 10  # bytes for page numbers, barriers and layouts that are converted
HOPPER: Final = CHIPS["sm_90"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One way to run the attention kernel.

    Fields:
        block_m: rows (node x query head of the group) per program.
        block_n: cache positions per step of the loop over the prefix.
        tail_n: keys per masked step: the rest of the prefix and the tree.
        num_warps: warps per program; one warpgroup has four.
        buffers: tiles of K and V on their way while one is worked on.
        programs: programs that run at once on a multiprocessor of the chip the line is for, as far as registers and
            shared memory go.
        maxnreg: registers per thread at most; None leaves it to the assembler, which may spill a few to fit one
            program more than shared memory has room for.
    """

    block_m: int
    block_n: int
    tail_n: int
    num_warps: int
    buffers: int
    programs: int
    maxnreg: int | None

    def stages(self, *, paged: bool) -> int:
        """Triton's `num_stages`: behind a page table every buffer takes two, one to load the page number in."""
        return 1 + self.buffers * (2 if paged else 1)


def _config(
    block_m: int,
    block_n: int,
    num_warps: int,
    buffers: int,
    programs: int,
    *,
    tail: int = 32,
    maxnreg: int | None = None,
) -> AttentionConfig:
    """A line; programs that share a multiprocessor share its registers, unless the limit is given."""
    if maxnreg is None and programs > 1:
        maxnreg = min(255, REGISTERS // (32 * num_warps * programs) // 8 * 8)
    return AttentionConfig(
        block_m=block_m,
        block_n=block_n,
        tail_n=tail,
        num_warps=num_warps,
        buffers=buffers,
        programs=programs,
        maxnreg=maxnreg,
    )


class HeadShape(NamedTuple):
    """Dimensions of a key and of a value."""

    keys: int
    values: int


class DimParts(NamedTuple):
    """A dimension as two powers of two; the second may be 0."""

    first: int
    second: int


LATENT: Final = (HeadShape(576, 512),)  # head shapes whose values are a part of the keys
Lines = tuple[AttentionConfig, ...]
# Hopper: what is measured first, and the default.
TABLE: Final[dict[tuple[HeadShape, int], Lines]] = {
    (HeadShape(64, 64), 2): (
        _config(16, 64, 4, 2, 5),
        _config(32, 64, 4, 2, 4),
        _config(64, 64, 4, 2, 3),
        _config(128, 64, 8, 2, 2),
    ),
    (HeadShape(96, 96), 2): (
        _config(16, 64, 4, 2, 4),
        _config(32, 32, 4, 2, 2, tail=16),
        _config(64, 64, 4, 2, 2),
        _config(128, 64, 8, 2, 1),
    ),
    (HeadShape(128, 128), 2): (
        _config(16, 64, 4, 2, 3),
        _config(32, 64, 4, 2, 2),
        _config(64, 64, 4, 2, 2),
        _config(128, 32, 8, 2, 2, tail=16),
    ),
    (HeadShape(192, 128), 2): (
        _config(16, 32, 4, 2, 4),
        _config(32, 64, 4, 1, 2),
        _config(64, 32, 4, 2, 2),
        _config(128, 64, 8, 1, 1),
    ),
    (HeadShape(192, 192), 2): (
        _config(16, 32, 4, 2, 3),
        _config(32, 32, 4, 2, 2),
        _config(64, 32, 4, 2, 2),
        _config(128, 32, 8, 2, 1),
    ),
    (HeadShape(256, 256), 2): (
        _config(16, 32, 4, 2, 2),
        _config(32, 32, 4, 1, 2),
        _config(64, 32, 8, 2, 1),
        _config(128, 32, 8, 2, 1, tail=16),
    ),
    (HeadShape(576, 512), 2): (_config(16, 32, 8, 1, 1, tail=16), _config(32, 32, 8, 1, 1, tail=16)),
    (HeadShape(64, 64), 4): (_config(16, 32, 4, 1, 3, tail=16),),
    (HeadShape(96, 96), 4): (_config(16, 32, 4, 1, 2, tail=16),),
    (HeadShape(128, 128), 4): (_config(16, 32, 4, 1, 2, tail=16),),
    (HeadShape(192, 192), 4): (_config(16, 16, 8, 1, 1, tail=16),),
    (HeadShape(256, 256), 4): (_config(16, 16, 8, 1, 1, tail=16),),
}


# Chips with other products, where a line of the table spills there.
ELSEWHERE: Final[dict[tuple[Products, HeadShape, int], Lines]] = {
    ("mma", HeadShape(64, 64), 2): (
        _config(16, 64, 4, 2, 4),
        _config(32, 64, 4, 2, 3),
        _config(64, 64, 4, 2, 2),
        _config(128, 64, 8, 2, 1),
    ),
    ("mma", HeadShape(96, 96), 2): (
        _config(16, 64, 4, 2, 3),
        _config(32, 32, 4, 2, 2, tail=16),
        _config(64, 32, 8, 2, 1, tail=16),
    ),
    ("mma", HeadShape(128, 128), 2): (
        _config(16, 64, 4, 2, 2),
        _config(32, 64, 4, 2, 2),
        _config(64, 32, 4, 2, 2),
        _config(128, 64, 8, 2, 1, tail=16),
    ),
    ("mma", HeadShape(192, 128), 2): (_config(16, 32, 4, 2, 4), _config(32, 64, 4, 1, 2), _config(64, 32, 8, 2, 1)),
    ("mma", HeadShape(192, 192), 2): (_config(16, 32, 4, 2, 3), _config(32, 32, 4, 2, 2)),
    ("mma", HeadShape(256, 256), 2): (_config(16, 32, 4, 2, 2), _config(32, 32, 4, 1, 2), _config(64, 32, 8, 2, 1)),
    ("tcgen05", HeadShape(64, 64), 2): (
        _config(16, 64, 4, 2, 4),
        _config(32, 64, 4, 2, 4),
        _config(64, 64, 4, 2, 3),
        _config(128, 64, 8, 2, 1, maxnreg=160),
    ),
    ("mma", HeadShape(576, 512), 2): (_config(16, 32, 8, 1, 1, tail=16),),
    ("tcgen05", HeadShape(96, 96), 2): (
        *TABLE[HeadShape(96, 96), 2][:3],
        _config(128, 64, 8, 2, 1, maxnreg=255),
    ),
    ("tcgen05", HeadShape(256, 256), 2): (
        _config(16, 32, 4, 2, 2),
        _config(32, 32, 4, 1, 2),
        _config(64, 32, 8, 2, 1, maxnreg=255),
        _config(128, 32, 8, 2, 1, tail=16, maxnreg=255),
    ),
    ("mfma", HeadShape(64, 64), 2): (
        _config(16, 64, 4, 2, 1),
        _config(32, 64, 4, 2, 1),
        _config(64, 64, 4, 1, 1),
        _config(128, 64, 8, 1, 1),
    ),
    ("mfma", HeadShape(96, 96), 2): (
        _config(16, 32, 4, 2, 1),
        _config(32, 32, 4, 2, 1),
        _config(64, 32, 4, 2, 1),
    ),
    ("mfma", HeadShape(128, 128), 2): (
        _config(16, 32, 4, 2, 1),
        _config(32, 32, 4, 2, 1),
        _config(64, 32, 4, 1, 1),
        _config(128, 16, 8, 1, 1, tail=16),
    ),
    ("mfma", HeadShape(192, 128), 2): (_config(16, 32, 4, 1, 1), _config(32, 32, 4, 1, 1)),
    ("mfma", HeadShape(192, 192), 2): (_config(16, 32, 4, 1, 1), _config(32, 16, 4, 1, 1, tail=16)),
    ("mfma", HeadShape(256, 256), 2): (_config(16, 16, 4, 1, 1, tail=16), _config(32, 16, 4, 1, 1, tail=16)),
    ("mfma", HeadShape(128, 128), 4): (_config(16, 16, 4, 1, 1, tail=16),),
}


# Where no descriptor serves (pages that hold no whole tile, tensors that are not dense), page numbers take registers.
POINTERS: Final[dict[tuple[Products, HeadShape, int], Lines]] = {
    ("wgmma", HeadShape(128, 128), 2): (
        *TABLE[HeadShape(128, 128), 2][:3],
        _config(128, 64, 8, 2, 1, tail=16),
    ),
}


def split_dim(dim: int, *, element_bytes: int = 2) -> DimParts:
    """A head dimension as two powers of two, the second 0 where one does: 96 = 64 + 32, 576 = 512 + 64.

    Parts of float32 have at most 128: each product by three TF32 ones holds its queries in registers.
    """
    first = 1 << (dim.bit_length() - 1)
    if element_bytes == 4 and first == dim == 256:
        return DimParts(128, 128)
    return DimParts(first, dim - first)


def shared_bytes(line: AttentionConfig, *, shape: HeadShape, element_bytes: int, chip: Chip = HOPPER) -> int:
    """Shared memory that a line needs, from above: its buffers of K and V, the queries, and a reserve.

    64 keys of 128 + 128 sixteen-bit values in two buffers and 16 rows of queries: 64 + 4 + 6 KB. Products of warpgroups
    read a tile while the next buffers are filled: one buffer more, as on AMD.
    """
    dims = shape.keys if shape in LATENT else shape.keys + shape.values
    warpgroup = line.block_m >= WARPGROUP_ROWS and chip.products in ("wgmma", "tcgen05")
    buffers = line.buffers + (warpgroup or chip.products == "mfma")
    rows = shape.keys if element_bytes == 2 else shape.keys + shape.values  # three TF32 products convert more
    return element_bytes * (buffers * line.block_n * dims + line.block_m * rows) + RESERVE


def resident(line: AttentionConfig, *, shape: HeadShape, element_bytes: int, chip: Chip) -> int:
    """Programs of a line that share a multiprocessor of a chip: fewer than the line means where memory is scarcer."""
    need = shared_bytes(line, shape=shape, element_bytes=element_bytes, chip=chip) - RESERVE + DRIVER_BYTES
    return max(1, min(line.programs, chip.shared_sm // need))


def attention_lines(*, shape: HeadShape, element_bytes: int, chip: Chip = HOPPER, tma: bool = True) -> Lines:
    """The lines for a head shape that fit a chip, by rows; without `tma` tiles are read by pointers.

    Raises:
        InputError: a head shape or element size that no line is for, on any chip or on this one.
    """
    key = (chip.products, shape, element_bytes)
    lines = (None if tma else POINTERS.get(key)) or ELSEWHERE.get(key) or TABLE.get((shape, element_bytes))
    if lines is None:
        known = sorted({f"{qk}" if qk == v else f"{qk} (values {v})" for (qk, v), _ in TABLE})
        raise wrong("q", f"head dimension {shape.keys}, of values {shape.values}", hint=f"known: {', '.join(known)}")
    need = partial(shared_bytes, shape=shape, element_bytes=element_bytes, chip=chip)
    fitting = tuple(line for line in lines if need(line) <= chip.shared_block)
    if not fitting:
        raise wrong(
            "q",
            f"head dimension {shape.keys} needs {min(map(need, lines)) >> 10} KB of shared memory",
            hint=f"this GPU has {chip.shared_block >> 10} KB for a program: take impl='torch'",
        )
    return fitting


def attention_config(
    *, shape: HeadShape, element_bytes: int, rows: int, chip: Chip = HOPPER, tma: bool = True
) -> AttentionConfig:
    """The line for so many rows: the smallest tile that holds them, else the largest.

    Raises:
        InputError: see `attention_lines`.
    """
    lines = attention_lines(shape=shape, element_bytes=element_bytes, chip=chip, tma=tma)
    return next((line for line in lines if line.block_m >= rows), lines[-1])
