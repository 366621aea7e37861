"""Who reads which piece of a prefix and who merges: the list of a step, and how it is found in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from treeopt.kernels.cache import SharedPrefixes
from treeopt.kernels.slicing import SPLITS, Slicing
from treeopt.kernels.tensors import Taken, Tensor, torch
from treeopt.kernels.trees import NodeTrees

WORK_FIELDS: Final = 16
SPAN_FIELDS: Final = 8
COUNTERS: Final = 4


class WorkList(NamedTuple):
    """Which program reads what, all int32.

    `work [items, 16]`: request, first token, end, whether its tree follows, first node, nodes, whether partial results
    are left, their first row, nodes of all trees, length of the prefix. `spans [entries, 8]`: first item, items, entry
    of the shared part or -1, first node, nodes. `tasks [.., 2]`: entry and first row of what is merged. `counters [4]`:
    programs that arrived, workers that merged, programs that leave partial results, tasks.
    """

    work: Tensor
    spans: Tensor
    tasks: Tensor
    counters: Tensor
    impl: Taken


class Entries(NamedTuple):
    """What is cut, request after request, then every shared part: int32 tensors, or None where they say nothing new."""

    begin: Tensor | None
    end: Tensor
    first: Tensor
    last: Tensor
    request: Tensor | None
    group: Tensor | None


def entries_of(trees: NodeTrees, lengths: Tensor, shared: SharedPrefixes | None, block_n: int) -> Entries:
    """What is cut: all prefixes, or what each has of its own and the shared parts behind them, in whole tiles."""
    first, last = trees.offsets[:-1], trees.offsets[1:]
    if shared is None:
        return Entries(None, lengths, first, last, None, None)
    every = torch.arange(trees.requests, device=lengths.device, dtype=torch.int32)
    of = torch.bucketize(every, shared.offsets[1:], right=True)
    tokens, opens = shared.tokens // block_n * block_n, shared.offsets[:-1]
    begin = tokens[of]
    return Entries(
        begin=torch.cat([begin, torch.zeros_like(tokens)]),
        end=torch.cat([lengths, tokens]),
        first=torch.cat([first, first[opens.long()]]),
        last=torch.cat([last, trees.offsets[shared.offsets[1:].long()]]),
        request=torch.cat([every, opens]),
        group=torch.where(begin > 0, of + trees.requests, -1).int(),
    )


def schedule_reference(trees: NodeTrees, entries: Entries, cut: Slicing) -> WorkList:
    """`schedule` in plain torch; waits for the device."""
    requests, device = trees.requests, entries.end.device
    cuts = _cuts(entries, requests, cut)
    size = _best_size(cuts, cut)
    work: list[list[int]] = []
    spans: list[list[int]] = []
    tasks: list[list[int]] = []
    kept = leaving = 0
    padding = int(trees.offsets[-1])
    for at, one in enumerate(cuts):
        pieces, split = one.pieces(size), one.splits(size)
        spans.append([len(work), pieces, one.group, one.first, one.nodes, 0, 0, 0])
        for piece in range(pieces):
            start, stop = piece * size, min((piece + 1) * size, one.tokens)
            fields = [one.request, one.begin + start, one.begin + stop, int(one.is_request and piece == pieces - 1)]
            fields += [one.first, one.nodes, int(split), kept + piece * one.rows, padding, one.begin + one.tokens]
            work.append(fields + [0] * (WORK_FIELDS - len(fields)))
        if split:
            kept, leaving = kept + pieces * one.rows, leaving + pieces * one.tiles
            tasks += [[at, row] for row in range(0, one.rows, cut.merge_rows) if one.is_request]
    unused = [0] * 8 + [padding] + [0] * (WORK_FIELDS - 9)
    work += [unused] * (cut.items - len(work))
    counters = [0, 0, leaving * cut.kv_heads, len(tasks)]
    tasks += [[0, 0]] * (cut.most_tasks(trees.parents.shape[0], trees.requests) - len(tasks))
    made = [torch.tensor(rows, dtype=torch.int32, device=device) for rows in (work, spans, tasks, counters)]
    return WorkList(made[0], made[1], made[2], made[3], "torch")


class _Cut(NamedTuple):
    """One prefix, or one shared part of several."""

    request: int
    is_request: bool
    begin: int
    tokens: int
    first: int
    nodes: int
    rows: int
    tiles: int
    group: int

    def pieces(self, size: int) -> int:
        return max(-(-self.tokens // size), int(self.is_request)) if self.nodes else 0

    def splits(self, size: int) -> bool:
        return self.pieces(size) > 1 or (self.pieces(size) == 1 and (self.group >= 0 or not self.is_request))


def _cuts(entries: Entries, requests: int, cut: Slicing) -> list[_Cut]:
    columns: list[Any] = [None if part is None else part.tolist() for part in entries]
    begin, end, first, last, request, group = columns
    found = []
    for at, stop in enumerate(end):
        start = begin[at] if begin else max(stop + 1 - cut.window, 0) if cut.window else 0
        start = start // cut.block_n * cut.block_n
        nodes = last[at] - first[at]
        found.append(
            _Cut(
                request=request[at] if request else at,
                is_request=at < requests,
                begin=start,
                tokens=stop - start,
                first=first[at],
                nodes=nodes,
                rows=nodes * cut.group,
                tiles=-(-nodes * cut.group // cut.block_m),
                group=group[at] if group and at < requests else -1,
            )
        )
    return found


def _best_size(cuts: Sequence[_Cut], cut: Slicing) -> int:
    longest = max(one.tokens for one in cuts)
    costs: dict[int, int] = {}
    for splits in SPLITS:
        size = max(-(-longest // splits), cut.min_piece)
        size = -(-size // cut.block_n) * cut.block_n
        # A request without nodes keeps its item: memory for partial results is for pieces beyond one per request.
        if sum(max(one.pieces(size), int(one.is_request)) for one in cuts) <= cut.items:
            costs[size] = piece_cost(cuts, size, longest, cut)
    least = min(costs.values())  # one piece per request always fits
    return max(size for size, cost in costs.items() if cost == least)


def piece_cost(cuts: Sequence[_Cut], size: int, longest: int, cut: Slicing) -> int:
    """What pieces of `size` tokens cost, in 1/1024 clocks."""
    programs = cut.kv_heads * sum(one.pieces(size) * one.tiles for one in cuts)
    partial_rows = cut.kv_heads * sum(one.pieces(size) * one.rows for one in cuts if one.splits(size))
    tile_tokens = cut.kv_heads * sum(one.tokens * one.tiles for one in cuts)
    tokens = cut.kv_heads * sum(one.tokens for one in cuts if one.nodes)
    piece = min(size, longest) * cut.token_cost + cut.start_cost
    in_waves = -(-programs // cut.processors) * piece
    in_turn = (tile_tokens * cut.token_cost + programs * cut.start_cost) // cut.processors + piece
    memory = tokens * cut.dram_cost + partial_rows * cut.row_cost
    return max(min(in_waves, in_turn), memory) + (cut.merge_cost if partial_rows else 0)
