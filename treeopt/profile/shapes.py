"""The shapes of kernels that a step of a target and its drafter runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

from treeopt.cost.block_pass import BlockPass
from treeopt.cost.drafter import Drafter
from treeopt.cost.drafting import Heads, Passes
from treeopt.cost.formats import Dtype
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.attention import GroupedAttention
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.kernels.times import KernelTimes
from treeopt.cost.model import ModelShape


class Shapes(NamedTuple):
    """What one GPU runs.

    Attributes:
        weights: distinct, largest first, LM heads included.
        attention: distinct head shapes, the target's first.
        layers: of the target, whose KV is compacted.
        step_bytes: weights that a plain step of the target streams.
        untimed: sentences on kernels that are not timed.
    """

    weights: tuple[Gemm, ...]
    attention: tuple[GroupedAttention, ...]
    layers: int
    step_bytes: int
    untimed: tuple[str, ...]


def shapes_of(model: ModelShape, drafter: Drafter, *, tp: int, dtype: Dtype) -> Shapes:
    """The shapes of one GPU's part.

    Raises:
        InputError: a tp that the heads do not divide by.
    """
    # Shapes only: nobody asks it for a time.
    target = ForwardPass(network=model.shard(tp), times=cast(KernelTimes, None), formats=model.formats(dtype), tp=tp)
    drafting = drafter.drafting(target)
    forwards = [target, *([drafting.network] if isinstance(drafting, Passes | BlockPass) else [])]
    found = {weight for forward in forwards for weight in _weights(forward)}
    if isinstance(drafting, Passes):
        found |= {*drafting.fusion, *drafting.entry}
    if isinstance(drafting, BlockPass):
        found |= {*drafting.entry.fusion, *drafting.entry.injection, *drafting.beside}
        found |= {*drafting.guessing.over_guesses, *drafting.guessing.per_guess}
    if isinstance(drafting, Heads):
        found.add(Gemm(model.hidden, model.hidden))
    attention = dict.fromkeys(forward.network.attention for forward in forwards)
    return Shapes(
        weights=tuple(sorted((w for w in found if w.groups == 1), key=lambda w: (-w.weights, w))),
        attention=tuple(shape for shape in attention if isinstance(shape, GroupedAttention)),
        layers=model.layers,
        step_bytes=target.network.weight_bytes(dtype),
        untimed=tuple(_untimed(forwards, tp)),
    )


def _weights(forward: ForwardPass) -> Iterator[Gemm]:
    net = forward.network
    yield from net.attention.projections(net.hidden, forward.attention_inputs)
    if net.dense_layers:
        yield from net.ffn
    if net.experts:
        yield net.experts.router(net.hidden)
        if net.experts.shared_intermediate:
            yield from net.experts.shared(net.hidden)
    yield net.lm_head


def _untimed(forwards: list[ForwardPass], tp: int) -> Iterator[str]:
    if any(forward.network.experts for forward in forwards):
        yield "routed experts are not timed: priced by the form of GEMMs"
    if any(not isinstance(forward.network.attention, GroupedAttention) for forward in forwards):
        yield "latent attention is not timed: priced by the form of the other attention, or of GEMMs"
    if tp > 1:
        yield "messages between GPUs are not timed: priced by the link's rate"
