"""Drafters by their config.json: kinds, sizes, and the reason where one has no price.

The sizes are those of public configs: SpecForge's `configs/` (qwen3-8b-dflash, qwen3.6-27b-dflash2, qwen3-8b-dspark,
qwen3-8b-peagle, qwen3-8b-domino, deepseek-v4-flash-dspark-official), Medusa's and the trainers' format by its own keys.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treeopt.cost import (
    BlockHeads,
    Drafter,
    DraftModel,
    Eagle,
    Eagle3,
    Medusa,
    ModelStep,
    Mtp,
    ParallelEagle,
    Pard,
    load_hardware,
    load_model,
    named_drafter,
    parse_drafter,
)
from treeopt.cost.block_drafters import Convolution, Selector
from treeopt.drafter_kind import drafter_kind
from treeopt.errors import FileFormatError, InputError
from treeopt.files.shipped import locate

QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
DFLASH = QWEN3_8B | {"architectures": ["DFlashDraftModel"], "block_size": 16, "num_target_layers": 36}
SPARK = {
    "mask_token_id": 151669,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "projector_type": "dspark",
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
}
DFLASH2 = QWEN3_8B | {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "use_sliding_window": True,
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 248070,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
}
V4 = {
    "architectures": ["DSparkV4DraftModel"],
    "model_type": "deepseek_v4_dspark_draft",
    "block_size": 5,
    "dflash_config": SPARK | {"target_layer_ids": [40, 41, 42], "projector_type": "dspark_v4"},
    "hidden_size": 4096,
    "vocab_size": 129280,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "hc_mult": 4,
    "tie_word_embeddings": False,
}
LAYER = {k: v for k, v in QWEN3_8B.items() if k != "num_hidden_layers"} | {"num_hidden_layers": 8}
SPECULATORS = {
    "speculators_model_type": "dflash",
    "block_size": 8,
    "draft_vocab_size": 24576,
    "aux_hidden_state_layer_ids": [2, 12, 20, 30, 38],
    "transformer_layer_config": LAYER,
}


def written(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def parsed(folder: Path, config: dict[str, Any]) -> Drafter:
    return parse_drafter(str(written(folder, config)), load_model=lambda name: load_model(locate("models", name).path))


def test_a_folder_and_its_config_mean_the_same(tmp_path: Path) -> None:
    found = parsed(tmp_path, DFLASH)
    assert isinstance(found, BlockHeads)
    assert named_drafter(str(tmp_path)) == f"dflash:{tmp_path}"
    again = [
        parse_drafter(text, load_model=lambda name: load_model(Path(name)))
        for text in (str(tmp_path / "config.json"), f"dflash:{tmp_path}")
    ]
    assert again == [found, found]


def test_dflash(tmp_path: Path) -> None:
    found = parsed(tmp_path, DFLASH)
    assert isinstance(found, BlockHeads)
    assert (found.kind, found.drafts, found.note) == ("dflash", 15, "")
    assert found.head is not None
    # one layer of the target per layer where none is named; the LM head is the target's
    assert (found.head.states, found.head.from_anchor, found.head.model.draft_vocab) == (5 * 4096, False, None)


def test_jetspec_is_dflash_with_a_causal_head(tmp_path: Path) -> None:
    found = parsed(tmp_path, DFLASH | {"dflash_config": {"causal_head": True, "target_layer_ids": [1, 9]}})
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    assert (found.kind, found.drafts, found.head.states) == ("jetspec", 15, 2 * 4096)


def test_dflash2(tmp_path: Path) -> None:
    found = parsed(tmp_path, DFLASH2)
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    assert (found.kind, found.drafts) == ("dflash2", 7)
    assert found.head.convolution == Convolution(taps=2, group=16)
    assert found.head.convolution.projection(5120).outputs == 1280
    assert found.head.selector == Selector(rank=256, top_k=16)
    assert found.head.model.window is not None


@pytest.mark.parametrize("architecture", ["DSparkDraftModel", "DFlashDraftModel", "Qwen3DSparkModel", "K3DSparkModel"])
def test_dspark_by_its_name_or_its_projector(architecture: str, tmp_path: Path) -> None:
    found = parsed(tmp_path, DFLASH | {"architectures": [architecture], "dflash_config": SPARK})
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    assert (found.kind, found.drafts, found.head.from_anchor, found.head.markov_rank) == ("dspark", 16, True, 256)


def test_dspark_with_a_bonus_anchor_guesses_one_less(tmp_path: Path) -> None:
    found = parsed(tmp_path, DFLASH | {"dflash_config": SPARK, "dspark_bonus_anchor": True})
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    assert (found.drafts, found.head.from_anchor) == (15, False)


def test_dspark_of_deepseek_v4_says_what_is_rough(tmp_path: Path) -> None:
    found = parsed(tmp_path, V4)
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    assert (found.kind, found.drafts) == ("dspark", 5)
    assert found.head.states == 3 * 4 * 4096  # four streams of three layers
    assert found.head.model.experts is not None
    assert found.head.in_checkpoint  # three layers of the target's own, in its format
    assert "hyper-connections have no price" in found.note
    assert "low-rank projections" in found.note


def test_dspark_named_in_a_targets_config_is_three_of_its_layers(tmp_path: Path) -> None:
    own = {"dspark_block_size": 5, "dspark_target_layer_ids": [40, 41, 42], "dspark_noise_token_id": 1}
    kept = {k: v for k, v in V4.items() if k not in ("block_size", "dflash_config")}
    target = kept | own | {"architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 43, "markov_rank": 256}
    found = parsed(tmp_path, target)
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    assert (found.kind, found.drafts, found.head.model.layers, found.head.in_checkpoint) == ("dspark", 5, 3, True)


def test_linear_attention_of_a_drafter_is_told_to_be_rough(tmp_path: Path) -> None:
    kda = DFLASH | {
        "architectures": ["DSparkDraftModel"],
        "block_size": 7,
        "dflash_config": SPARK,
        "linear_attn_config": {},
    }
    found = parsed(tmp_path, kda)
    assert isinstance(found, BlockHeads)
    assert "linear-attention layers are priced as attention" in found.note


def test_a_drafter_with_latent_attention_caches_latents(tmp_path: Path) -> None:
    """SpecForge's kimi-k3-dspark-5mla and deepseek-v2-lite-dflash."""
    mla = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    found = parsed(tmp_path, DFLASH | mla | {"architectures": ["KimiK3DSpark5MLADraftModel"], "dflash_config": SPARK})
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    assert (found.kind, found.head.model.attention.kv_values) == ("dspark", 576)
    lite = parsed(tmp_path, DFLASH | mla | {"architectures": ["DeepseekDFlashDraftModel"], "q_lora_rank": None})
    assert isinstance(lite, BlockHeads)
    assert lite.kind == "dflash"


def test_the_trainers_format(tmp_path: Path) -> None:
    found = parsed(tmp_path, SPECULATORS)
    assert isinstance(found, BlockHeads)
    assert found.head is not None
    head = found.head
    assert (found.kind, found.drafts, head.states, head.model.layers) == ("dflash", 7, 5 * 4096, 8)
    assert head.model.draft_vocab == 24576


def test_peagle_of_both_formats(tmp_path: Path) -> None:
    plain = QWEN3_8B | {"architectures": ["PEagleDraftModel"], "num_hidden_layers": 4, "draft_vocab_size": 151936}
    found = parsed(tmp_path, plain)
    assert isinstance(found, ParallelEagle)
    assert found.head is not None
    assert (found.drafts, found.head.model.layers, found.head.model.draft_vocab) == (7, 4, 151936)
    config = {"speculators_model_type": "peagle", "transformer_layer_config": LAYER, "draft_vocab_size": 32000}
    proposed = config | {"speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]}}
    found = parsed(tmp_path, proposed)
    assert isinstance(found, ParallelEagle)
    assert found.drafts == 5


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}, Eagle3),
        ({"speculators_model_type": "eagle3", "transformer_layer_config": LAYER, "draft_vocab_size": 32000}, Eagle3),
        ({"architectures": ["EAGLELlamaModel"]}, Eagle),
        ({"architectures": ["Qwen3_5MTPDraftModel"]}, Mtp),
        ({"num_nextn_predict_layers": 1}, Mtp),
        ({"medusa_num_heads": 3, "medusa_num_layers": 1, "base_model_name_or_path": "v"}, Medusa),
        ({"pard_token": 151665}, Pard),
        ({"architectures": ["Qwen3ForCausalLM"]}, DraftModel),
        ({"num_nextn_predict_layers": 0}, DraftModel),
    ],
)
def test_the_other_kinds(config: dict[str, Any], kind: type, tmp_path: Path) -> None:
    assert isinstance(parsed(tmp_path, QWEN3_8B | config), kind)


def test_medusa_heads_are_counted(tmp_path: Path) -> None:
    assert parsed(tmp_path, {"medusa_num_heads": 3}) == Medusa(heads=3)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"dflash_config": {"projector_type": "domino", "gru_hidden_dim": 1024}}, "GRU"),
        ({"architectures": ["DominoDraftModel"]}, "GRU"),
        # newer ones, whose keys are those of DFlash and DSpark
        ({"architectures": ["HSpecDraftModel"], "dflash_config": SPARK}, "kind hspec .*no such drafter is known"),
        ({"architectures": ["DSpineDraftModel"]}, "kind dspine .*no such drafter is known"),
        ({"architectures": ["Gemma4AssistantForCausalLM"]}, "KV cache"),
        ({"speculators_model_type": "newest"}, "no such drafter is known"),
    ],
)
def test_a_drafter_without_a_price_says_why(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why):
        parsed(tmp_path, DFLASH | config)


def test_what_is_missing_or_contradicts_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="num_attention_heads"):
        parsed(tmp_path, {k: v for k, v in DFLASH.items() if k != "num_attention_heads"})
    with pytest.raises(InputError, match="guesses nothing"):
        parsed(tmp_path, DFLASH | {"block_size": 1})
    with pytest.raises(InputError, match=r"config\.json"):
        parse_drafter(str(tmp_path / "no" / "config.json"), load_model=lambda name: load_model(Path(name)))


def test_every_kind_by_name_has_a_price() -> None:
    model = load_model(locate("models", "qwen3-8b").path)
    times = load_hardware(locate("hardware", "h100-sxm").path).kernel_times()
    for kind in ("dflash", "jetspec", "dflash2", "dspark", "peagle", "suffix", "pard:qwen3-0.6b"):
        drafter = parse_drafter(kind, load_model=lambda name: load_model(locate("models", name).path))
        terms = ModelStep(model=model, times=times, drafter=drafter).terms(
            batch=4, nodes=4, depth=3, widths=[1, 1, 1], context=512
        )
        assert (terms.drafter_s > 0) == (kind != "suffix")


def test_the_causal_flag_of_the_trainers_format() -> None:
    assert drafter_kind(SPECULATORS | {"causal_head": True}).name == "jetspec"
