"""How the prefixes of a batch are cut into pieces that end soonest, by a model of the chip, on the device."""

from __future__ import annotations

from treeopt.kernels.cache import SharedPrefixes
from treeopt.kernels.pieces import COUNTERS, SPAN_FIELDS, WORK_FIELDS, WorkList, entries_of, schedule_reference
from treeopt.kernels.slicing import Slicing
from treeopt.kernels.tensors import Impl, Tensor, choose, jitted, on_device, torch
from treeopt.kernels.trees import NodeTrees


def schedule(
    trees: NodeTrees, lengths: Tensor, cut: Slicing, *, shared: SharedPrefixes | None = None, impl: Impl = "auto"
) -> WorkList:
    """Cut the prefixes of all requests into pieces of one size that ends soonest, on the device.

    The cost of a size is what takes longer: the busiest multiprocessor or the chip's memory, partial results included.
    The bound on the busiest one is the better of two: whole waves of full pieces, and Graham's (SIAM J. Appl. Math. 17,
    1969) for pieces that start as programs end.

    Raises:
        InputError: see `choose`.
    """
    entries = entries_of(trees, lengths, shared, cut.block_n)
    if choose(impl, lengths) == "torch":
        return schedule_reference(trees, entries, cut)
    count, device = entries.end.shape[0], lengths.device
    made = [
        torch.empty(shape, dtype=torch.int32, device=device)
        for shape in (
            (cut.items, WORK_FIELDS),
            (count, SPAN_FIELDS),
            (cut.most_tasks(trees.parents.shape[0], trees.requests), 2),
            (COUNTERS,),
        )
    ]
    with on_device(lengths):
        jitted("_step_triton").schedule_kernel[(1,)](
            entries.begin,
            entries.end,
            entries.first,
            entries.last,
            entries.request,
            entries.group,
            trees.offsets,
            *made,
            count,
            trees.requests,
            cut.items,
            cut.window,
            cut.block_n,
            cut.block_m,
            cut.group,
            cut.kv_heads,
            cut.processors,
            cut.min_piece,
            cut.token_cost,
            cut.dram_cost,
            cut.row_cost,
            cut.start_cost,
            cut.merge_cost,
            cut.merge_rows,
            BLOCK=32,
            PIECES=8,
        )
    work, spans, tasks, counters = made
    return WorkList(work, spans, tasks, counters, "triton")
