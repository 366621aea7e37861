"""The shapes of attention that a step's price depends on: grouped-query and multi-head latent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from treeopt.arrays import FloatArray
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.kernels.roofline import WIDE_BYTES, Work
from treeopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class GroupedAttention:
    """Attention in which `heads` queries share `kv_heads` keys and values; equal numbers are multi-head attention.

    Source: Ainslie et al., "GQA", arXiv 2305.13245.
    """

    heads: int
    kv_heads: int
    head_dim: int

    def projections(self, hidden: int, inputs: int | None = None) -> tuple[Gemm, ...]:
        """The GEMMs of one layer: q, k and v in one, then the output; the first reads `inputs` channels if given."""
        width = self.heads * self.head_dim
        return (Gemm(width + self.kv_values, inputs or hidden), Gemm(hidden, width))

    @property
    def moved_values(self) -> tuple[int, ...]:
        """Values read and written per token by each kernel between the GEMMs: rotary positions with the KV write."""
        return (2 * self.heads * self.head_dim + 2 * self.kv_values,)

    @property
    def kv_values(self) -> int:
        """Values in the KV cache per token and layer."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def flops_per_pair(self) -> int:
        """Operations of one query token on one key token, all heads: q.k and p v, two each per channel."""
        return 4 * self.heads * self.head_dim

    def shard(self, tp: int) -> GroupedAttention:
        """One GPU's part of `tp`; with fewer KV heads than GPUs each GPU keeps a copy of one, as engines do.

        Raises:
            InputError: `tp` that neither kind of head divides by.
        """
        if self.kv_heads % tp and tp % self.kv_heads:
            raise InputError(
                f"{self.kv_heads} KV heads do not share out over tp={tp}",
                hint=f"give a tp that divides {self.kv_heads} or is a multiple of it",
            )
        return replace(self, heads=_share(self.heads, tp), kv_heads=-(-self.kv_heads // tp))


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention, decoded in absorbed form: the cache holds one latent per token, not heads.

    The up-projections of k and v move into per-head GEMMs on the query and on the output, so all heads attend over
    the same `kv_lora_rank + qk_rope_head_dim` values. `q_lora_rank` None is a full-rank query (DeepSeek-V2-Lite).
    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C.
    """

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def projections(self, hidden: int, inputs: int | None = None) -> tuple[Gemm, ...]:
        """The GEMMs of one layer: down to the latents, up to queries, absorbed k, absorbed v, output.

        The way down reads `inputs` channels if given.
        """
        queries = self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        if self.q_lora_rank is None:
            into: tuple[Gemm, ...] = (Gemm(queries + self.kv_values, inputs or hidden),)
        else:
            into = (Gemm(self.q_lora_rank + self.kv_values, inputs or hidden), Gemm(queries, self.q_lora_rank))
        return (
            *into,
            Gemm(self.kv_lora_rank, self.qk_nope_head_dim, groups=self.heads),
            Gemm(self.v_head_dim, self.kv_lora_rank, groups=self.heads),
            Gemm(hidden, self.heads * self.v_head_dim),
        )

    @property
    def moved_values(self) -> tuple[int, ...]:
        """Values read and written per token by each kernel between the GEMMs: latents' norms, rotary and KV write."""
        latents = (self.q_lora_rank or 0) + self.kv_lora_rank
        return (2 * latents, 2 * self.heads * self.qk_rope_head_dim + 2 * self.kv_values)

    @property
    def kv_values(self) -> int:
        """Values in the KV cache per token and layer: the latent, read once for both k and v, and the shared key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def flops_per_pair(self) -> int:
        """Operations of one query token on one key token, all heads: q.k over latent and rope, p v over the latent."""
        return 2 * self.heads * (self.kv_values + self.kv_lora_rank)

    def shard(self, tp: int) -> LatentAttention:
        """One GPU's part of `tp`: the heads share out, every GPU keeps the whole latent cache.

        Raises:
            InputError: `tp` that the heads do not divide by.
        """
        return replace(self, heads=_share(self.heads, tp))


Attention = GroupedAttention | LatentAttention


def attention_work(
    requests: FloatArray,
    queries: FloatArray,
    keys: FloatArray,
    heads: FloatArray,
    kv_heads: FloatArray,
    head_dim: FloatArray,
    kv_bytes: float = WIDE_BYTES,
) -> Work:
    """`[...]` requests, each with `queries` over `keys`: the KV is read once, every query meets every key.

    Queries of one request share one kernel, and tree-attention kernels mask scores after computing them. The overhead
    counts per request and KV head, the pieces that a decode kernel is cut into. `kv_bytes` is of one cached value.
    """
    return Work(
        traffic_bytes=kv_bytes * requests * keys * 2.0 * kv_heads * head_dim,
        flops=4.0 * requests * queries * keys * heads * head_dim,
        units=1.0 * requests * kv_heads,
    )


def latent_work(
    requests: FloatArray,
    queries: FloatArray,
    keys: FloatArray,
    heads: FloatArray,
    kv_lora_rank: int = 512,
    qk_rope_head_dim: int = 64,
    kv_bytes: float = WIDE_BYTES,
) -> Work:
    """As `attention_work`; all heads read the same latent, so a request is one piece of work.

    One query of DeepSeek-V3's 128 heads over 1000 keys: 2 * 1000 * 576 bytes, 2 * 1000 * 128 * (576 + 512) operations.
    """
    values = kv_lora_rank + qk_rope_head_dim
    flops = 2.0 * requests * queries * keys * heads * (values + kv_lora_rank)
    return Work(kv_bytes * requests * keys * values * np.ones(np.shape(queries)), flops, 1.0 * requests)


def latent_point(requests: FloatArray, queries: FloatArray, heads: FloatArray) -> FloatArray:
    """`[..., 3]` what tells latent attention kernels apart: requests, queries, heads."""
    return np.stack(np.broadcast_arrays(np.log(requests), np.log(queries), np.log(heads)), axis=-1)


def attention_point(
    requests: FloatArray, queries: FloatArray, heads: FloatArray, kv_heads: FloatArray, head_dim: FloatArray
) -> FloatArray:
    """`[..., 4]` what tells attention kernels apart: pieces of work, heads that share KV, channels, queries."""
    pieces, group = np.log(requests * kv_heads), np.log(heads / kv_heads)
    return np.stack(np.broadcast_arrays(pieces, group, np.log(head_dim), np.log(queries)), axis=-1)


class AttentionKernel(NamedTuple):
    """What a shape of attention moves and computes, by requests, queries and keys, and what tells it from others."""

    work: Callable[[FloatArray, FloatArray, FloatArray], Work]
    point: Callable[[FloatArray, FloatArray], FloatArray]


def attention_kernel(shape: Attention, kv_bytes: float) -> AttentionKernel:
    """A shape's kernel over a cache of `kv_bytes` per value."""
    heads = np.array(float(shape.heads))
    if isinstance(shape, GroupedAttention):
        sizes = (heads, np.array(float(shape.kv_heads)), np.array(float(shape.head_dim)))
        return AttentionKernel(
            lambda B, N, L: attention_work(B, N, L, *sizes, kv_bytes), lambda B, N: attention_point(B, N, *sizes)
        )
    ranks = (shape.kv_lora_rank, shape.qk_rope_head_dim)
    return AttentionKernel(
        lambda B, N, L: latent_work(B, N, L, heads, *ranks, kv_bytes), lambda B, N: latent_point(B, N, heads)
    )


def _share(heads: int, tp: int) -> int:
    if heads % tp:
        raise InputError(f"{heads} heads do not share out over tp={tp}", hint=f"give a tp that divides {heads}")
    return heads // tp
