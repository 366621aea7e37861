"""The shapes of kernels that a step of a target and its drafter runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from treeopt.cost.block_pass import BlockPass
from treeopt.cost.drafter import Drafter
from treeopt.cost.drafting import Heads, Passes
from treeopt.cost.formats import Dtype
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.attention import Attention, GroupedAttention, LatentAttention
from treeopt.cost.kernels.experts import Experts
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.kernels.stand_ins import WIDE_FORMATS
from treeopt.cost.kernels.times import KernelTimes
from treeopt.cost.model import ModelShape
from treeopt.profile.attention import LATENT_DIMS


class ExpertLayer(NamedTuple):
    """One GPU's part of a layer's routed experts."""

    hidden: int
    experts: Experts

    @classmethod
    def of(cls, hidden: int, experts: Experts) -> ExpertLayer:
        """Without what differs between layers of the same routed experts."""
        return cls(hidden, replace(experts, dense_layers=0, shared_intermediate=0))


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What one GPU runs; of each kind the distinct ones, the target's first where order says something.

    Attributes:
        weights: largest first, LM heads included.
        narrow: those that are served in `layers` format, where that is FP8.
        attention: of the target and the drafter.
        experts: of the target and the drafter, and the half of each, as two GPUs share it: a fit needs two widths.
        hidden: channels that norms and messages have.
        intermediate: widths that activations have.
        vocab: of the logits, all GPUs' together.
        layers: of the target, whose KV is compacted.
        tp: GPUs that share the model.
        step_bytes: weights that a plain step of the target streams.
        untimed: sentences on kernels that are not timed.
    """

    weights: tuple[Gemm, ...]
    narrow: tuple[Gemm, ...] = ()
    attention: tuple[Attention, ...] = ()
    experts: tuple[ExpertLayer, ...] = ()
    hidden: tuple[int, ...] = ()
    intermediate: tuple[int, ...] = ()
    vocab: int = 0
    layers: int = 1
    tp: int = 1
    step_bytes: int = 0
    untimed: tuple[str, ...] = ()

    @property
    def grouped(self) -> tuple[GroupedAttention, ...]:
        """Attention with keys and values."""
        return tuple(shape for shape in self.attention if isinstance(shape, GroupedAttention))

    @property
    def latent(self) -> tuple[LatentAttention, ...]:
        """Attention over one latent per token."""
        return tuple(shape for shape in self.attention if isinstance(shape, LatentAttention))


def shapes_of(model: ModelShape, drafter: Drafter, *, tp: int, dtype: Dtype) -> Shapes:
    """The shapes of one GPU's part.

    Raises:
        InputError: a tp that the heads do not divide by.
    """
    # Shapes only: nobody asks it for a time.
    target = ForwardPass(network=model.shard(tp), times=cast(KernelTimes, None), formats=model.formats(dtype), tp=tp)
    drafting = drafter.drafting(target)
    forwards = [target, *([drafting.network] if isinstance(drafting, Passes | BlockPass) else [])]
    layers = {weight for forward in forwards for weight in _layer_weights(forward)}
    others = {weight for forward in forwards for weight in _wide_weights(forward)}
    if isinstance(drafting, Passes):
        layers |= {*drafting.fusion, *drafting.entry}
    if isinstance(drafting, BlockPass):
        others |= {*drafting.entry.fusion, *drafting.entry.injection, *drafting.beside}
        others |= {*drafting.guessing.over_guesses, *drafting.guessing.per_guess}
    if isinstance(drafting, Heads):
        others.add(Gemm(model.hidden, model.hidden))
    networks = [forward.network for forward in forwards]
    found = dict.fromkeys(ExpertLayer.of(net.hidden, net.experts) for net in networks if net.experts)
    halves = {ExpertLayer(hidden, replace(each, intermediate=-(-each.intermediate // 2))) for hidden, each in found}
    return Shapes(
        weights=_plain(layers | others),
        narrow=() if dtype in WIDE_FORMATS else _plain(layers),
        attention=tuple(dict.fromkeys(network.attention for network in networks)),
        experts=(*found, *sorted(halves - found.keys(), key=lambda half: half.hidden)),
        hidden=tuple(dict.fromkeys(network.hidden for network in networks)),
        intermediate=tuple(dict.fromkeys(_widths(networks))),
        vocab=model.vocab,
        layers=model.layers,
        tp=tp,
        step_bytes=target.network.weight_bytes(dtype),
        untimed=tuple(_untimed(networks)),
    )


def _plain(weights: set[Gemm]) -> tuple[Gemm, ...]:
    return tuple(sorted((w for w in weights if w.groups == 1), key=lambda w: (-w.weights, w)))


def _layer_weights(forward: ForwardPass) -> Iterator[Gemm]:
    net = forward.network
    yield from net.attention.projections(net.hidden, forward.attention_inputs)
    if net.linear:
        yield from net.linear.projections(net.hidden)
    if net.dense_layers:
        yield from net.ffn
    if net.experts and net.experts.shared_intermediate:
        yield from net.experts.shared(net.hidden)


def _wide_weights(forward: ForwardPass) -> Iterator[Gemm]:
    net = forward.network
    if net.experts:
        yield net.experts.router(net.hidden)
    yield net.lm_head


def _widths(networks: list[ModelShape]) -> Iterator[int]:
    for net in networks:
        if net.dense_layers:
            yield net.intermediate
        if net.experts and net.experts.shared_intermediate:
            yield net.experts.shared_intermediate


def _untimed(networks: list[ModelShape]) -> Iterator[str]:
    for network in networks:
        shape = network.attention
        if isinstance(shape, LatentAttention) and (shape.kv_lora_rank, shape.qk_rope_head_dim) != LATENT_DIMS:
            yield "latent attention is timed for ranks of 512 and 64 only: priced by the form of the other attention"
    if any(network.linear for network in networks):
        yield "states of linear attention are not timed: priced as streams"
