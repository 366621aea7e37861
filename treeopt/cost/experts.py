"""The experts of a mixture-of-experts network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from treeopt.arrays import FloatArray
from treeopt.cost.config import size, size_or_none
from treeopt.cost.coverage import visited_experts
from treeopt.cost.gemm import GatedFfn, Gemm, gated_ffn
from treeopt.files.documents import Field

# Beyond it the most popular experts take all tokens.
MAX_SKEW: Final = 8.0


@dataclass(frozen=True, kw_only=True)
class Experts:
    """`count` gated feed-forward blocks of which every token visits `per_token`, in all but `dense_layers` layers.

    `shared_intermediate` is the width of what every token visits besides, all shared experts together; 0 for none.
    `skew` says how much more popular some experts are: the r-th most popular one's share falls as `r^-skew`; 0 is
    balanced routing.
    """

    count: int
    per_token: int
    intermediate: int
    shared_intermediate: int
    dense_layers: int
    skew: float = 0.0

    def visited(self, tokens: FloatArray) -> FloatArray:
        """`[...]` distinct experts of one layer that the tokens are expected to visit, each choosing on its own."""
        return visited_experts(tokens, self.count, self.per_token, self.skew)

    def router(self, hidden: int) -> Gemm:
        """The GEMM that scores the experts."""
        return Gemm(self.count, hidden)

    def routed(self, hidden: int) -> GatedFfn:
        """One routed expert."""
        return gated_ffn(hidden, self.intermediate)

    def shared(self, hidden: int) -> GatedFfn:
        """All shared experts as the one block that they are computed as."""
        return gated_ffn(hidden, self.shared_intermediate)

    def weights(self, hidden: int, visited: int) -> int:
        """Values in one layer's router, shared experts, and `visited` routed experts."""
        routed = visited * self.routed(hidden).weights
        return self.router(hidden).weights + self.shared(hidden).weights + routed

    def shard(self, tp: int) -> Experts:
        """One GPU's part of `tp`: a slice of every expert (tensor, not expert parallelism), the whole router."""
        return replace(
            self, intermediate=-(-self.intermediate // tp), shared_intermediate=-(-self.shared_intermediate // tp)
        )


def read_experts(field: Field, layers: int) -> Experts:
    """The `experts` of a treeopt.model/1 file."""
    field.only("count", "per_token", "intermediate", "shared_intermediate", "dense_layers", "skew")
    count = field.get("count").integer(low=1)
    return Experts(
        count=count,
        per_token=field.get("per_token").integer(low=1, high=count),
        intermediate=field.get("intermediate").integer(low=1),
        shared_intermediate=field.get("shared_intermediate", 0).integer(low=0),
        dense_layers=field.get("dense_layers", 0).integer(low=0, high=layers - 1),
        skew=field.get("skew", 0.0).number(low=0.0, high=MAX_SKEW),
    )


def experts_from_config(config: Field, layers: int) -> Experts | None:
    """The experts of a config.json in the words of Mixtral, Qwen or DeepSeek; None for a dense network."""
    count = size_or_none(config, "n_routed_experts", "num_experts", "num_local_experts", low=0)
    sparse = len(_sparse_layers(config, layers))
    if not count or not sparse:
        return None
    intermediate = size(config, "moe_intermediate_size", "intermediate_size")
    shared = size_or_none(config, "shared_expert_intermediate_size", low=0)
    if shared is None:
        shared = intermediate * (size_or_none(config, "n_shared_experts", low=0) or 0)
    return Experts(
        count=count,
        per_token=config.get("num_experts_per_tok").integer(low=1, high=count),
        intermediate=intermediate,
        shared_intermediate=shared,
        dense_layers=layers - sparse,
    )


def _sparse_layers(config: Field, layers: int) -> list[int]:
    """Indices of the layers with experts, by the rules of DeepSeek's and Qwen's modelling code in transformers."""
    first = size_or_none(config, "first_k_dense_replace", low=0) or 0
    period = size_or_none(config, "moe_layer_freq") or 1
    step = size_or_none(config, "decoder_sparse_step") or 1
    only_dense = config.get("mlp_only_layers", None)
    dense = set() if only_dense.value is None else {field.integer(low=0) for field in only_dense.items()}
    kept = (layer for layer in range(first, layers) if layer not in dense)
    return [layer for layer in kept if layer % period == 0 and (layer + 1) % step == 0]
