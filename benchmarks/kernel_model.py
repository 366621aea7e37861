"""What the attention's launches should take by a model of an H200, before and after pieces were cut by their cost.

    python benchmarks/kernel_model.py

Nothing is timed: times are max(memory, products) of a launch plus constants, to be read as ratios. The model and its
constants are those that the schedule was criticised with; "before" are the rules of that time, cut to at least 8 tokens
per row, and the same with at least 128 tokens per piece; "now" is the schedule of `treeopt.kernels` itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from treeopt.kernels.chip import CHIPS
from treeopt.kernels.config import HeadShape, attention_config
from treeopt.kernels.pieces import entries_of, schedule_reference
from treeopt.kernels.slicing import slicing
from treeopt.kernels.trees import NodeTrees

PROCESSORS, DIM = 132, 128
BANDWIDTH, PEAK = 4.3e12, 0.79e15  # bytes/s of a copy, FLOP/s of a matrix product, each measured once on an H200
SM_BANDWIDTH = 64 * 1.75e9  # from L2 to one multiprocessor
EFFICIENCY = 0.55  # share of PEAK of a tile whose softmax overlaps nothing
LATENCY_S, LAUNCH_S, MERGE_S = 1.2e-6, 1.0e-6, 2.5e-6


class Case(NamedTuple):
    requests: int
    nodes: int
    length: int
    kv_heads: int
    group: int


class Launch(NamedTuple):
    programs: int
    processors: int
    time_s: float
    floor_s: float

    @property
    def of_floor(self) -> float:
        """The share of the time that the roofline explains."""
        return self.floor_s / self.time_s


# The findings' table, with the cases of its script.
CASES = (
    *(Case(1, 1, 8192, 8, 4), Case(1, 16, 2048, 8, 4), Case(1, 16, 8192, 8, 4), Case(1, 64, 2048, 8, 4)),
    *(Case(1, 64, 8192, 8, 4), Case(1, 64, 32768, 8, 4), Case(4, 64, 2048, 8, 4), Case(4, 16, 8192, 8, 4)),
    *(Case(16, 16, 8192, 8, 4), Case(16, 64, 8192, 8, 4), Case(64, 16, 8192, 8, 4), Case(64, 64, 2048, 8, 4)),
    *(Case(1, 16, 8192, 1, 8), Case(1, 16, 32768, 1, 8), Case(4, 16, 8192, 1, 8), Case(16, 16, 8192, 1, 8)),
    *(Case(1, 64, 8192, 1, 8), Case(16, 64, 8192, 1, 8)),
)


def launch(case: Case, *, pieces: int, tile: int, resident: int, merge_s: float) -> Launch:
    """One layer's attention in so many pieces, with row tiles of which `resident` share a multiprocessor."""
    rows = case.nodes * case.group
    programs = pieces * case.kv_heads * -(-rows // tile)
    busy = min(PROCESSORS, programs)
    flops = 4 * case.requests * case.kv_heads * rows * DIM * case.length
    traffic = 2 * case.requests * case.length * case.kv_heads * DIM * 2
    split = pieces > case.requests
    partials = pieces * case.kv_heads * rows * DIM * 4 * 2 if split else 0
    products_s = flops / (PEAK * EFFICIENCY * min(1.0, programs / PROCESSORS))
    waves = programs / (PROCESSORS * resident)
    if waves > 1:
        products_s *= math.ceil(waves) / waves
    memory_s = traffic / min(BANDWIDTH, busy * SM_BANDWIDTH) + partials / BANDWIDTH
    time_s = max(products_s, memory_s) + LATENCY_S + LAUNCH_S + (merge_s if split else 0.0)
    return Launch(programs, busy, time_s, max(traffic / BANDWIDTH, flops / PEAK))


def before(case: Case, *, least: int | None) -> Launch:
    """The rules before: pieces of 8 tokens per row up to 2048, or of `least`; a second launch merged them."""
    rows = case.nodes * case.group
    tile, resident = next(line for line in ((16, 3), (32, 2), (64, 2), (128, 1)) if line[0] >= min(rows, 128))
    slots = max(1, PROCESSORS * resident // (case.kv_heads * -(-rows // tile)))
    shortest = least or 8 * min(rows, 256)
    splits = max(1, min(PROCESSORS if least else 64, -(-case.length // shortest), 2 * slots))
    items = min(case.requests * splits, case.requests + 2 * slots)
    overhead = 64 + 2 * min(rows, tile)
    found = []
    for parts in range(1, splits + 1):
        size = max(-(-case.length // parts), shortest)
        size = -(-size // 64) * 64
        count = case.requests * -(-case.length // size)
        more = overhead if parts > 1 else 0
        in_turn = (case.requests * case.length + count * more) // slots + size + more
        if count <= items:
            found.append((min(-(-count // slots) * (size + more), in_turn), parts, count))
    return launch(case, pieces=min(found)[2], tile=tile, resident=resident, merge_s=MERGE_S)


def now(case: Case, *, bound: int | None = None) -> Launch:
    """What `treeopt.kernels` does, prepared for trees of at most `bound` nodes; the launch merges its own pieces."""
    chip, shape, rows = CHIPS["sm_90"], HeadShape(DIM, DIM), (bound or case.nodes) * case.group
    config = attention_config(shape=shape, element_bytes=2, rows=rows, chip=chip)
    cut = slicing(
        config=config,
        chip=chip,
        shape=shape,
        element_bytes=2,
        kv_bytes=2,
        requests=case.requests,
        rows=rows,
        group=case.group,
        kv_heads=case.kv_heads,
        capacity=case.length,
    )
    trees = NodeTrees.from_parents([[-1] + [0] * (case.nodes - 1)] * case.requests)
    lengths = torch.full((case.requests,), case.length, dtype=torch.int32)
    found = schedule_reference(trees, entries_of(trees, lengths, None, cut.block_n), cut)
    pieces = int(found.spans[:, 1].sum())
    return launch(case, pieces=pieces, tile=config.block_m, resident=config.programs, merge_s=0.0)


def said(found: Launch) -> str:
    return f"{found.programs}, {found.processors} | {found.time_s * 1e6:.1f} | {found.of_floor:.0%}"


def main() -> None:
    columns = ("before", "pieces >= 128", "now")
    print(
        "| B | N | L | KV heads x G | floor, us |" + "".join(f" {c}: programs, SMs | us | of floor |" for c in columns)
    )
    print("|---|---|---|---|---|" + "---|---|---|" * len(columns))
    for case in CASES:
        rows = [before(case, least=None), before(case, least=128), now(case)]
        head = f"{case.requests} | {case.nodes} | {case.length} | {case.kv_heads} x {case.group}"
        print(f"| {head} | {rows[0].floor_s * 1e6:.1f} | {' | '.join(map(said, rows))} |")
    small = Case(1, 4, 8192, 8, 4)
    print(f"\nA tree of 4 nodes, B = 1, L = 8192: prepared for 4 nodes {said(now(small))}; ", end="")
    print(f"in a graph captured for 64 nodes {said(now(small, bound=64))}.")


if __name__ == "__main__":
    main()
