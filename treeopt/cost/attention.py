"""The shapes of attention that a step's price depends on: grouped-query and multi-head latent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from treeopt.cost.config import size, size_or_none
from treeopt.cost.gemm import Gemm
from treeopt.errors import InputError
from treeopt.files.documents import Field


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


def read_attention(field: Field) -> Attention:
    """The `attention` of a treeopt.model/1 file; `kv_lora_rank` makes it latent."""
    heads = field.get("heads").integer(low=1)
    if "kv_lora_rank" in field.mapping():
        field.only("heads", *_LATENT_SIZES)
        return _latent(field, heads)
    field.only("heads", "kv_heads", "head_dim")
    return _grouped(field.get("kv_heads"), heads, field.get("head_dim").integer(low=1))


def attention_from_config(config: Field) -> Attention:
    """The attention of a config.json; absent KV heads are as many as query heads, absent head_dim is hidden / heads."""
    heads = size(config, "num_attention_heads")
    if size_or_none(config, "kv_lora_rank") is not None:
        return _latent(config, heads)
    hidden = size(config, "hidden_size")
    head_dim = size_or_none(config, "head_dim")
    if head_dim is None and hidden % heads:
        raise config.get("num_attention_heads").error(
            f"hidden_size {hidden} is not a multiple of {heads} heads", hint="correct one of them, or add head_dim"
        )
    kv_heads = config.get("num_key_value_heads", None)
    if kv_heads.value is None:
        kv_heads = config.get("num_attention_heads")
    return _grouped(kv_heads, heads, head_dim or hidden // heads)


def _grouped(kv_heads: Field, heads: int, head_dim: int) -> GroupedAttention:
    count = kv_heads.integer(low=1)
    if heads % count:
        raise kv_heads.error(
            f"{heads} heads are not a multiple of {count} KV heads", hint="every KV head serves equally many heads"
        )
    return GroupedAttention(heads=heads, kv_heads=count, head_dim=head_dim)


_LATENT_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _latent(field: Field, heads: int) -> LatentAttention:
    # treeopt.model/1 takes these names over from config.json.
    return LatentAttention(
        heads=heads,
        q_lora_rank=size_or_none(field, "q_lora_rank"),
        kv_lora_rank=size(field, "kv_lora_rank"),
        qk_nope_head_dim=size(field, "qk_nope_head_dim"),
        qk_rope_head_dim=size(field, "qk_rope_head_dim"),
        v_head_dim=size(field, "v_head_dim"),
    )


def _share(heads: int, tp: int) -> int:
    if heads % tp:
        raise InputError(f"{heads} heads do not share out over tp={tp}", hint=f"give a tp that divides {heads}")
    return heads // tp
