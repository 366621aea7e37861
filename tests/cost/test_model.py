"""Model shapes: published totals, config.json in every dialect, and what broken files say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from treeopt.cost import Experts, GroupedAttention, LatentAttention, ModelShape, SlidingWindow, load_model
from treeopt.cost.model_file import model_from
from treeopt.errors import FileFormatError, InputError
from treeopt.files.documents import parse_document

# Total parameters as the model cards or the headers of the safetensors files state them.
PUBLISHED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "smollm2-135m": 134_515_008,
    "deepseek-v3": 671.0e9,
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "tie_word_embeddings": False,
    "v_head_dim": 128,
    "vocab_size": 129280,
}

Shipped = Callable[[str], ModelShape]


def from_config(config: dict[str, Any], name: str = "some-model/config.json") -> ModelShape:
    text = json.dumps(config, indent=2)
    return model_from(parse_document(text, name=name, what="config.json"))


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def active_parameters(model: ModelShape) -> int:
    """The weights that one token meets, both embeddings counted, as model cards do."""
    if model.experts is None:
        return model.parameters
    unvisited = model.experts.count - model.experts.per_token
    return model.parameters - model.expert_layers * unvisited * 3 * model.hidden * model.experts.intermediate


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str, shipped_model: Shipped) -> None:
    assert shipped_model(name).parameters == pytest.approx(PUBLISHED[name], rel=5e-4)


# Qwen3-30B-A3B card: 3.3B; Mixtral paper (arXiv 2401.04088): 13B; DeepSeek-V3 README_WEIGHTS: 36.6B with one of the
# two 0.93B embeddings.
@pytest.mark.parametrize(
    ("name", "active"), [("qwen3-30b-a3b", 3.35e9), ("mixtral-8x7b", 12.9e9), ("deepseek-v3", 36.6e9 + 0.927e9)]
)
def test_active_parameters_are_the_published_ones(name: str, active: float, shipped_model: Shipped) -> None:
    assert active_parameters(shipped_model(name)) == pytest.approx(active, rel=5e-3)


def test_glm_4_5_air_has_the_106_billion_of_its_name(shipped_model: Shipped) -> None:
    # A106B-A12B; the 12B count neither embedding
    model = shipped_model("glm-4.5-air")
    assert model.parameters == pytest.approx(106e9, rel=1e-2)
    assert active_parameters(model) - model.embedding_parameters == pytest.approx(12e9, rel=2e-2)


def test_kv_values_by_hand(shipped_model: Shipped) -> None:
    # k and v, 8 heads of 128
    assert shipped_model("llama-3.1-8b").attention.kv_values == 2 * 8 * 128
    # DeepSeek-V3 report, section 2.1.1: the latent and the shared rope key are all that is cached
    assert shipped_model("deepseek-v3").attention.kv_values == 512 + 64


def test_fp8_weights_keep_16_bit_embeddings(shipped_model: Shipped) -> None:
    model = shipped_model("llama-3.1-8b")
    embeddings = 2 * 128256 * 4096
    assert model.weight_bytes("fp8") == (model.parameters - embeddings) + 2 * embeddings
    assert model.weight_bytes("fp16") == 2 * model.parameters
    # four bits, and 16 for every 128 weights
    assert model.weight_bytes("int4") == round((0.5 + 1 / 64) * (model.parameters - embeddings)) + 2 * embeddings


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama-3.1-8b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (MIXTRAL, "mixtral-8x7b"),
        (DEEPSEEK_V3, "deepseek-v3"),
    ],
)
def test_config_json_gives_the_shipped_shape(config: dict[str, Any], name: str, shipped_model: Shipped) -> None:
    found = from_config(config, name=f"{name}/config.json")
    shipped = shipped_model(name)
    assert replace(found, source="", dtype=shipped.dtype) == replace(shipped, source="")


def test_a_multimodal_config_is_read_from_its_text_config() -> None:
    config = {"model_type": "mistral3", "text_config": without(LLAMA, "tie_word_embeddings"), "vision_config": {}}
    assert from_config(config | {"tie_word_embeddings": True}).tied_embeddings
    assert replace(from_config(config)) == from_config(LLAMA)


def test_what_a_config_leaves_out() -> None:
    config = without(LLAMA, "num_key_value_heads", "tie_word_embeddings") | {"head_dim": None}
    model = from_config(config)
    assert model.attention == GroupedAttention(heads=32, kv_heads=32, head_dim=4096 // 32)
    assert not model.tied_embeddings
    assert from_config(config | {"model_type": "gemma2"}).tied_embeddings


def test_dense_layers_among_experts() -> None:
    # layers 1, 3, 5, ... have experts, except 3 and 5: 24 - 2 of 48
    config = QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3, 5]}
    assert from_config(config).dense_layers == 48 - (24 - 2)
    # layers 4, 6, ..., 60 are past the first three and even: 29 of 61
    assert from_config(DEEPSEEK_V3 | {"moe_layer_freq": 2}).expert_layers == 29
    assert from_config(QWEN3_MOE | {"mlp_only_layers": list(range(48))}).experts is None


def test_shared_experts() -> None:
    qwen2_moe = from_config(QWEN3_MOE | {"shared_expert_intermediate_size": 5632})
    assert qwen2_moe.experts == Experts(
        count=128, per_token=8, intermediate=768, shared_intermediate=5632, dense_layers=0
    )
    two = from_config(DEEPSEEK_V3 | {"n_shared_experts": 2})
    assert two.experts is not None
    assert two.experts.shared_intermediate == 2 * 2048


def test_a_full_rank_query_has_one_projection_into_the_latents() -> None:
    model = from_config(DEEPSEEK_V3 | {"q_lora_rank": None})
    assert isinstance(model.attention, LatentAttention)
    first = model.attention.projections(7168)[0]
    assert (first.outputs, first.inputs) == (128 * (128 + 64) + 512 + 64, 7168)


def test_a_name_comes_from_the_checkpoint_folder_or_the_file() -> None:
    assert from_config(LLAMA, name="/models/my-llama/config.json").name == "my-llama"
    assert from_config(LLAMA, name="my-llama.json").name == "my-llama"
    assert from_config(LLAMA, name="config.json").name == Path.cwd().name


def test_what_has_no_price_is_said() -> None:
    assert from_config(LLAMA).note == ""
    assert (
        "quantization 'hqq' has no price" in from_config(LLAMA | {"quantization_config": {"quant_method": "hqq"}}).note
    )
    assert "attention chunks" in from_config(LLAMA | {"attention_chunk_size": 8192}).note
    assert from_config(LLAMA | {"sliding_window": 4096}).note == ""


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": 4096}, SlidingWindow(4096, 32)),  # Mistral
        ({"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 4}, None),  # Qwen2
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 4}, SlidingWindow(4096, 28)),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 36}, None),
        ({"sliding_window": 4096, "model_type": "gemma2", "tie_word_embeddings": True}, SlidingWindow(4096, 16)),
        (
            {"sliding_window": 512, "sliding_window_pattern": 6},
            SlidingWindow(512, 27),
        ),  # layers 6, 12, 18, 24, 30 are full
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}, SlidingWindow(128, 16)),
        (
            {"attention_chunk_size": 8192, "layer_types": ["chunked_attention"] * 24 + ["full_attention"] * 8},
            SlidingWindow(8192, 24),
        ),
    ],
)
def test_windows_by_the_families_rules(config: dict[str, Any], window: SlidingWindow | None) -> None:
    assert from_config(LLAMA | config).window == window


def test_the_vocabulary_of_an_eagle3_head_is_read() -> None:
    assert from_config(LLAMA | {"num_hidden_layers": 1, "draft_vocab_size": 32000}).draft_vocab == 32000
    assert from_config(LLAMA).draft_vocab is None


@pytest.mark.parametrize(
    ("config", "line", "message"),
    [
        (without(LLAMA, "hidden_size"), 1, "'hidden_size' is missing"),
        (without(QWEN3_MOE, "num_experts_per_tok"), 1, "'num_experts_per_tok' is missing"),
        (LLAMA | {"num_key_value_heads": 5}, 7, "32 heads are not a multiple of 5 KV heads"),
        (LLAMA | {"num_hidden_layers": 0}, 6, "0 is out of range"),
        (LLAMA | {"hidden_size": 4097}, 5, "hidden_size 4097 is not a multiple of 32 heads"),
        (MIXTRAL | {"num_experts_per_tok": 9}, 6, "9 is out of range"),
        ({"layer_types": ["full_attention", "linear_attention"]} | LLAMA, 2, "neither attention nor gated delta rules"),
        ({"linear_num_value_heads": 32} | LLAMA, 1, "'full_attention_interval' is missing"),
    ],
)
def test_a_broken_config_names_the_line(config: dict[str, Any], line: int, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        from_config(config)
    assert str(caught.value).startswith(f"some-model/config.json:{line}: ")
    assert message in str(caught.value)
    assert caught.value.hint


PROFILE = """\
format: treeopt.model/1
name: tiny
source: made up
hidden: 64
layers: 4
vocab: 100
intermediate: 96
tied_embeddings: true
attention: {heads: 4, kv_heads: 2, head_dim: 16}
experts:
  count: 8
  per_token: 2
  intermediate: 32
  dense_layers: 1
  skew: 0.5
window: {tokens: 512, layers: 3}
"""


def test_a_profile_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(PROFILE)
    assert load_model(path) == ModelShape(
        name="tiny",
        source="made up",
        hidden=64,
        layers=4,
        vocab=100,
        intermediate=96,
        tied_embeddings=True,
        attention=GroupedAttention(heads=4, kv_heads=2, head_dim=16),
        experts=Experts(count=8, per_token=2, intermediate=32, shared_intermediate=0, dense_layers=1, skew=0.5),
        window=SlidingWindow(tokens=512, layers=3),
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("model/1", "plan/1", 1, "format: this is 'treeopt.plan/1', expected 'treeopt.model/1'"),
        ("hidden: 64", "hiden: 64", 4, "hiden: unknown key"),
        ("hidden: 64\n", "", 1, "'hidden' is missing"),
        ("vocab: 100", "vocab: 100\nvocap: 100", 7, "vocap: unknown key"),
        ("layers: 4", "layers: 2.5", 5, "layers: 2.5 is not a whole number"),
        ("vocab: 100", "vocab: many", 6, "vocab: expected a number, found str"),
        ("kv_heads: 2", "kv_heads: 3", 9, "attention.kv_heads: 4 heads are not a multiple of 3 KV heads"),
        ("head_dim: 16", "head_size: 16", 9, "attention.head_size: unknown key"),
        ("head_dim: 16", "kv_lora_rank: 16", 9, "attention.kv_heads: unknown key"),
        ("  per_token: 2", "  per_token: 9", 12, "experts.per_token: 9 is out of range"),
        ("  dense_layers: 1", "  dense_layers: 4", 14, "experts.dense_layers: 4 is out of range"),
        ("  skew: 0.5", "  skew: -1", 15, "experts.skew: -1 is out of range"),
        ("layers: 3}", "layers: 5}", 16, "window.layers: 5 is out of range"),
        ("layers: 3}", "layer: 3}", 16, "window.layer: unknown key"),
        ("tied_embeddings: true", "tied_embeddings: 1", 8, "tied_embeddings: expected true or false"),
    ],
)
def test_a_broken_profile_names_the_line(old: str, new: str, line: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    assert PROFILE.count(old) == 1
    path.write_text(PROFILE.replace(old, new))
    with pytest.raises(FileFormatError) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")
    assert caught.value.hint


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_model(tmp_path / "nothing.yaml")


def test_an_unknown_dtype_lists_the_known(shipped_model: Shipped) -> None:
    with pytest.raises(InputError, match="unknown dtype 'int3'") as caught:
        shipped_model("qwen3-8b").weight_bytes("int3")
    assert caught.value.hint.startswith("known: bf16, fp16, fp32, fp8, ")


def test_a_shard_shares_out_what_tensor_parallelism_shares_out(shipped_model: Shipped) -> None:
    whole = shipped_model("llama-3.3-70b")
    part = whole.shard(8)
    assert part.attention == GroupedAttention(heads=8, kv_heads=1, head_dim=128)
    assert (part.hidden, part.intermediate, part.vocab) == (8192, 28672 // 8, 128256 // 8)
    assert part.parameters * 8 == whole.parameters
    # with more GPUs than KV heads each keeps a whole one
    assert whole.shard(16).attention == GroupedAttention(heads=4, kv_heads=1, head_dim=128)


def test_a_shard_of_latent_attention_keeps_the_whole_cache(shipped_model: Shipped) -> None:
    whole = shipped_model("deepseek-v3")
    assert whole.shard(8).attention.heads == 16
    assert whole.shard(8).attention.kv_values == whole.attention.kv_values


def test_a_shard_slices_every_expert_and_keeps_the_router(shipped_model: Shipped) -> None:
    part = shipped_model("deepseek-v3").shard(8)
    assert part.experts == Experts(
        count=256, per_token=8, intermediate=2048 // 8, shared_intermediate=2048 // 8, dense_layers=3
    )
    assert part.experts.router(part.hidden) == (256, 7168, 1)


@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-8b", 3), ("smollm2-135m", 2), ("deepseek-v3", 3)])
def test_heads_that_do_not_share_out_are_refused(name: str, tp: int, shipped_model: Shipped) -> None:
    with pytest.raises(InputError, match=f"heads do not share out over tp={tp}"):
        shipped_model(name).shard(tp)
