"""How long drafts are whose drafter proposes nothing, or less than it may, in some steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treeopt.acceptance.errors import EvidenceError
from treeopt.acceptance.replay import accepted_lengths, draft_starts
from treeopt.acceptance.trace import Trace
from treeopt.arrays import FloatArray
from treeopt.tree import DraftTree


@dataclass(frozen=True)
class DraftLengths:
    """`at_least`: the share of a request's steps whose draft has at least 1, 2, ... tokens.

    Beyond the last one drafts go on as often as they have that length.

    Raises:
        EvidenceError: no shares, or ones that rise or are not 0 to 1.
    """

    at_least: tuple[float, ...]

    def __post_init__(self) -> None:
        before = 1.0
        for share in self.at_least:
            if not 0.0 <= share <= before + 1e-9:  # NaN too
                raise EvidenceError(
                    f"drafts have one token more in {share:.3g} of the steps, after {before:.3g}",
                    keys=("draft_lengths",),
                    hint="shares of all steps are 0 to 1 and never rise with the length",
                )
            before = share
        if not self.at_least:
            raise EvidenceError("no shares of draft lengths", keys=("draft_lengths",), hint="give at least one")

    def verified(self, nodes: int) -> FloatArray:
        """`[nodes]` probability that a request verifies exactly 1, 2, ... N tokens, the root counted.

        Worked: (0.3, 0.2) with N = 3 gives 0.7, 0.1 and 0.2.
        """
        at_least = np.ones(nodes + 1)
        known = np.array(self.at_least)
        at_least[1:-1] = known[np.minimum(np.arange(nodes - 1), len(known) - 1)]
        at_least[-1] = 0.0
        return at_least[:-1] - at_least[1:]


def recorded_lengths(trace: Trace) -> DraftLengths | None:
    """Where the drafter listed something, at the draft starts of the longest chain; None without its probabilities."""
    if trace.topk_prob is None:
        return None
    starts = draft_starts(trace, accepted_lengths(trace.rank, DraftTree.chain(trace.depth)))
    listed = np.logical_and.accumulate(trace.topk_prob[:, :, 0] > 0, axis=1)
    return DraftLengths(tuple((starts @ listed / starts.sum()).tolist()))


def mixed_lengths(parts: Sequence[tuple[float, DraftLengths | None]]) -> DraftLengths | None:
    """Of several kinds of traffic by their weights; None where all of them always draft."""
    depth = max((len(own.at_least) for _, own in parts if own is not None), default=0)
    if not depth:
        return None
    total = np.zeros(depth)
    for weight, own in parts:
        known = np.array((1.0,) if own is None else own.at_least)
        total += weight * known[np.minimum(np.arange(depth), len(known) - 1)]
    return DraftLengths(tuple(np.minimum(total, 1.0).tolist()))
