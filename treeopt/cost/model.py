"""The sizes of a transformer that a step's price depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from treeopt.cost.formats import WeightFormats
from treeopt.cost.kernels.attention import Attention
from treeopt.cost.kernels.experts import Experts
from treeopt.cost.kernels.gemm import GatedFfn, Gemm, gated_ffn
from treeopt.cost.kernels.linear_attention import LinearAttention


class SlidingWindow(NamedTuple):
    """`layers` of a network attend to the last `tokens` keys; the other layers to all."""

    tokens: int
    layers: int


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer by its sizes.

    `intermediate` is the width of the dense feed-forward block; where every layer has experts it still says how wide
    the block of an EAGLE head is. Norms and biases are left out: under 0.1 % of the parameters. `draft_vocab` is the
    reduced vocabulary that the config of an EAGLE-3 head names. `dtype` and `kv_dtype` are the formats that the
    checkpoint is in and caches in (`WeightFormats`). `note` says what of the config has no price, or a rough one.
    """

    name: str
    source: str
    hidden: int
    layers: int
    vocab: int
    intermediate: int
    tied_embeddings: bool
    attention: Attention
    experts: Experts | None = None
    window: SlidingWindow | None = None
    linear: LinearAttention | None = None
    draft_vocab: int | None = None
    dtype: str = "bf16"
    kv_dtype: str | None = None
    note: str = ""

    @property
    def ffn(self) -> GatedFfn:
        """The dense feed-forward block."""
        return gated_ffn(self.hidden, self.intermediate)

    @property
    def lm_head(self) -> Gemm:
        """The GEMM to the logits."""
        return Gemm(self.vocab, self.hidden)

    @property
    def dense_layers(self) -> int:
        """Layers with the dense feed-forward block."""
        return self.layers if self.experts is None else self.experts.dense_layers

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.embedding_parameters + self.layer_parameters + self.expert_parameters

    @property
    def layer_parameters(self) -> int:
        """Weights of the layers without their routed experts."""
        attention = sum(gemm.weights for gemm in self.attention.projections(self.hidden))
        total = self.attention_layers * attention + self.dense_layers * self.ffn.weights
        if self.linear:
            total += self.linear.layers * sum(gemm.weights for gemm in self.linear.projections(self.hidden))
        if self.experts:
            total += self.expert_layers * self.experts.weights(self.hidden, visited=0)
        return total

    @property
    def expert_parameters(self) -> int:
        """Weights of all routed experts."""
        if self.experts is None:
            return 0
        return self.expert_layers * self.experts.count * self.experts.routed(self.hidden).weights

    @property
    def attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.layers - (self.linear.layers if self.linear else 0)

    def formats(self, dtype: str | None = None) -> WeightFormats:
        """The formats that a name means for this network; without one those of the checkpoint.

        Raises:
            InputError: a name that is no format.
        """
        return WeightFormats.parse(dtype or self.dtype, experts=self.experts is not None)

    @property
    def embedding_parameters(self) -> int:
        """The input embedding and the LM head; one matrix when tied."""
        return self.lm_head.weights * (1 if self.tied_embeddings else 2)

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Memory of all weights; embedding and LM head stay in 16 bit beside narrower layers, as in checkpoints."""
        formats = self.formats(dtype)
        layers = self.layer_parameters * formats.layers.bytes_per_value
        experts = self.expert_parameters * formats.experts.bytes_per_value
        return round(layers + experts + self.embedding_parameters * formats.wide.bytes_per_value)

    def shard(self, tp: int) -> ModelShape:
        """One GPU's part under tensor parallelism: heads, feed-forward width and vocabulary share out, hidden stays.

        Raises:
            InputError: `tp` that the heads do not divide by.
        """
        return replace(
            self,
            vocab=-(-self.vocab // tp),
            intermediate=-(-self.intermediate // tp),
            attention=self.attention.shard(tp),
            experts=self.experts.shard(tp) if self.experts else None,
            linear=self.linear.shard(tp) if self.linear else None,
        )
