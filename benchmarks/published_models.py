"""What published runs served: models that are not shipped, by their config.json, and the kernels of their steps."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from treeopt.cost import (
    Drafter,
    Eagle3,
    EngineSteps,
    Experts,
    GroupedAttention,
    LatentAttention,
    ModelShape,
    ModelStep,
    load_hardware,
    load_model,
    parse_drafter,
)
from treeopt.cost.kernels.linear_attention import LinearAttention
from treeopt.files.shipped import locate


def _gqa(heads: int, kv_heads: int, head_dim: int = 128) -> GroupedAttention:
    return GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def _experts(count: int, per_token: int, intermediate: int, shared: int = 0, dense: int = 0) -> Experts:
    return Experts(
        count=count,
        per_token=per_token,
        intermediate=intermediate,
        shared_intermediate=shared,
        dense_layers=dense,
    )


# From the config.json of Qwen/Qwen3-235B-A22B, Qwen/Qwen3-Coder-480B-A35B-Instruct and
# Qwen/Qwen3-Next-80B-A3B-Instruct-FP8. Those of inclusionAI/Ling-flash-2.0 and moonshotai/Kimi-K2-Instruct were written
# down without their files at hand; of Ling's only the number of parameters was checked.
SHAPES: Final = {
    shape.name: shape
    for shape in (
        ModelShape(
            name="qwen3-235b",
            source="config.json",
            hidden=4096,
            layers=94,
            vocab=151936,
            intermediate=12288,
            tied_embeddings=False,
            attention=_gqa(64, 4),
            experts=_experts(128, 8, 1536),
        ),
        ModelShape(
            name="qwen3-480b",
            source="config.json",
            hidden=6144,
            layers=62,
            vocab=151936,
            intermediate=8192,
            tied_embeddings=False,
            attention=_gqa(96, 8),
            experts=_experts(160, 8, 2560),
        ),
        ModelShape(
            name="ling-flash-2.0",
            source="not checked against its config.json",
            hidden=4096,
            layers=32,
            vocab=157184,
            intermediate=9216,
            tied_embeddings=False,
            attention=_gqa(32, 4),
            experts=_experts(256, 8, 1024, shared=1024, dense=1),
        ),
        ModelShape(
            name="kimi-k2",
            source="not checked against its config.json",
            hidden=7168,
            layers=61,
            vocab=163840,
            intermediate=18432,
            tied_embeddings=False,
            dtype="fp8_block",
            attention=LatentAttention(
                heads=64, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
            ),
            experts=_experts(384, 8, 2048, shared=2048, dense=1),
        ),
        ModelShape(
            name="qwen3-next-80b",
            source="config.json",
            hidden=2048,
            layers=48,
            vocab=151936,
            intermediate=5120,
            tied_embeddings=False,
            dtype="fp8_block",
            attention=_gqa(16, 2, 256),
            experts=_experts(512, 10, 512, shared=512),
            linear=LinearAttention(layers=36, key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_kernel=4),
        ),
    )
}
# EAGLE-3 heads that are not of the target's own shape: kimi-k2-eagle3.json and ling-flash-2.0-eagle3.json of SpecForge.
HEADS: Final = {
    "kimi-k2": ModelShape(
        name="kimi-k2-eagle3",
        source="config.json",
        hidden=7168,
        layers=1,
        vocab=163840,
        intermediate=18432,
        tied_embeddings=False,
        attention=_gqa(64, 64),
        draft_vocab=32000,
    ),
    "ling-flash-2.0": ModelShape(
        name="ling-flash-2.0-eagle3",
        source="config.json",
        hidden=4096,
        layers=1,
        vocab=157184,
        intermediate=14336,
        tied_embeddings=False,
        attention=_gqa(32, 8),
        draft_vocab=32000,
    ),
}
# The tp of SpecBundle's runs is not stated: the fewest GPUs that hold the weights and meet its plain step.
SPECBUNDLE: Final = {
    "Llama-3.1-8B-Instruct": ("llama-3.1-8b", 1),
    "Llama-3.3-70B-Instruct": ("llama-3.3-70b", 4),
    "Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b", 4),
    "Qwen3-Coder-30B-A3B-Instruct": ("qwen3-30b-a3b", 4),
    "Qwen3-235B-A22B-Instruct-2507": ("qwen3-235b", 8),
    "Qwen3-Coder-480B-A35B-Instruct": ("qwen3-480b", 8),
    "Ling-flash-2.0": ("ling-flash-2.0", 2),
    "Kimi-K2-Instruct": ("kimi-k2", 8),
    "Qwen3-Next-80B-A3B-Instruct-FP8": ("qwen3-next-80b", 1),
}


@lru_cache
def step_of(hardware: str, model: str, drafter: str, tp: int) -> ModelStep:
    """The kernels alone: what the engine adds is what is judged."""

    def shipped(name: str) -> ModelShape:
        return load_model(locate("models", name).path)

    gpu = load_hardware(locate("hardware", hardware).path)
    head: Drafter = parse_drafter(drafter, load_model=shipped)
    if drafter == "eagle3" and model in HEADS:
        head = Eagle3(head=HEADS[model])
    shape = SHAPES.get(model) or shipped(model)
    return ModelStep(model=shape, times=gpu.kernel_times(), drafter=head, tp=tp, engine=EngineSteps())
