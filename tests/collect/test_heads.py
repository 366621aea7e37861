"""Drafters of random weights in their published layouts, against their formulas written out draft by draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collect import plain_heads as plain

from treeopt.collect.drafters import load_drafter
from treeopt.collect.heads.files import kind_of
from treeopt.collect.settings import parse_draft
from treeopt.decode.hf import HuggingFaceModel
from treeopt.errors import FileFormatError, InputError

torch = pytest.importorskip("torch", reason="heads run in torch")
transformers = pytest.importorskip("transformers", reason="targets are loaded by transformers")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.filterwarnings("ignore")

V, H, INNER, DRAFTED, BLOCK, MASK = 40, 16, 24, 12, 5, 38
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
FIRST, DEPTH, FUSED = 4, 3, (1, 3, 5)
LAYER = {
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": plain.HEADS,
    "num_key_value_heads": plain.KV_HEADS,
    "head_dim": plain.WIDTH,
    "rms_norm_eps": plain.EPSILON,
    "max_position_embeddings": 128,
}


@pytest.fixture(scope="module")
def target() -> HuggingFaceModel:
    config = transformers.LlamaConfig(**LAYER, num_hidden_layers=6, initializer_range=0.6, pad_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return HuggingFaceModel(transformers.LlamaForCausalLM(config).eval(), name="a tiny target")


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.3 * torch.randn(shape, generator=generator) + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def layer_shapes(at: str, *, inputs: int = H, qk_norm: bool = False, first_norm: bool = True) -> dict[str, Any]:
    q, kv = plain.HEADS * plain.WIDTH, plain.KV_HEADS * plain.WIDTH
    shapes = {f"{at}.self_attn.{name}_proj.weight": (n, inputs) for name, n in (("q", q), ("k", kv), ("v", kv))}
    shapes |= {f"{at}.self_attn.o_proj.weight": (H, q), f"{at}.post_attention_layernorm.weight": (H,)}
    shapes |= {f"{at}.mlp.{name}_proj.weight": (INNER, H) for name in ("gate", "up")}
    shapes |= {f"{at}.mlp.down_proj.weight": (H, INNER)}
    shapes |= {f"{at}.input_layernorm.weight": (H,)} if first_norm else {}
    shapes |= {f"{at}.self_attn.{name}_norm.weight": (plain.WIDTH,) for name in "qk"} if qk_norm else {}
    return shapes


def save(folder: Path, weights: dict[str, Any], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    safetensors.save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def guessed(folder: Path | str, target: HuggingFaceModel, depth: int = DEPTH) -> list[list[int]]:
    drafter = load_drafter(
        parse_draft(str(folder)), target, temperature=0.0, depth=depth, device="cpu", dtype="float32"
    )
    found = list(drafter.along(np.array(TEXT), first=FIRST, depth=depth))
    assert [len(guesses.top(1)) for guesses in found] == [len(TEXT) - FIRST - d for d in range(depth)]
    return [guesses.top(1)[:, 0].tolist() for guesses in found]


def embed(target: HuggingFaceModel) -> Any:
    return lambda tokens: target.embed(np.array(tokens))


def mapped() -> Any:
    """`d2t [DRAFTED]`: the head's token t is the target's 3 t + 1."""
    return torch.arange(DRAFTED) * 2 + 1


def eagle3_weights(*, layers: int = 1, qk_norm: bool = False) -> dict[str, Any]:
    shapes = layer_shapes("layers.0", inputs=2 * H, qk_norm=qk_norm) | {"layers.0.hidden_norm.weight": (H,)}
    for i in range(1, layers):
        shapes |= layer_shapes(f"layers.{i}", qk_norm=qk_norm)
    shapes |= {"fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (DRAFTED, H)}
    return random_weights(shapes) | {"d2t": mapped()}


def eagle3_drafts(weights: dict[str, Any], target: HuggingFaceModel, fused: tuple[int, ...] = FUSED) -> Any:
    """By the formulas; P-EAGLE's where the weights have a masked state."""
    entry = torch.cat(target.hidden_states(np.array(TEXT), fused), dim=-1) @ weights["fc.weight"].T
    masked = weights.get("mask_hidden")

    def further(token: int, out: Any) -> tuple[Any, Any]:
        if masked is None:
            return embed(target)([token])[0], out
        return embed(target)([MASK])[0], masked.flatten() @ weights["fc.weight"].T

    def guess(out: Any) -> int:
        best = int((plain.normed(out, weights["norm.weight"]) @ weights["lm_head.weight"].T).argmax())
        return best + int(weights["d2t"][best])

    return plain.drafted(
        TEXT,
        FIRST,
        DEPTH,
        states=entry,
        embed=embed(target),
        run=lambda embedded, held: plain.eagle3(weights, embedded, held),
        guess=guess,
        further=further,
    )


def test_eagle(target: HuggingFaceModel, tmp_path: Path) -> None:
    shapes = layer_shapes("layers.0", first_norm=False) | {"fc.weight": (H, 2 * H), "fc.bias": (H,)}
    weights = random_weights(shapes)
    folder = save(tmp_path, weights, **LAYER, num_hidden_layers=1, architectures=["LlamaForCausalLM"], bias=True)
    assert kind_of(folder) == "eagle"
    expected = plain.drafted(
        TEXT,
        FIRST,
        DEPTH,
        states=target.last_hidden(np.array(TEXT)),
        embed=embed(target),
        run=lambda embedded, held: plain.eagle(weights, embedded, held),
        guess=lambda out: int(target.head(out[None]).argmax()),
        further=lambda token, out: (embed(target)([token])[0], out),
    )
    assert guessed(folder, target) == expected


def test_eagle3_as_its_authors_save_it(target: HuggingFaceModel, tmp_path: Path) -> None:
    """One layer called `midlayer`, and the three fused layers by the rule of their code: 2, n/2 and n - 3."""
    weights = eagle3_weights()
    theirs = {name.replace("layers.0.", "midlayer."): value for name, value in weights.items()}
    theirs["t2d"] = torch.zeros(V, dtype=torch.bool)
    folder = save(tmp_path, theirs, **LAYER, num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"])
    assert kind_of(folder) == "eagle3"
    assert guessed(folder, target) == eagle3_drafts(weights, target, fused=(2, 3, 3))


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_eagle3_in_speculators_format(target: HuggingFaceModel, tmp_path: Path, model_type: str) -> None:
    weights = eagle3_weights(qk_norm=model_type == "qwen3")
    folder = save(
        tmp_path,
        weights,
        speculators_model_type="eagle3",
        eagle_aux_hidden_state_layer_ids=list(FUSED),
        transformer_layer_config={**LAYER, "model_type": model_type, "num_hidden_layers": 1},
    )
    assert guessed(folder, target) == eagle3_drafts(weights, target)


def test_p_eagle_guesses_all_depths_from_masks(target: HuggingFaceModel, tmp_path: Path) -> None:
    weights = eagle3_weights(layers=2) | random_weights({"mask_hidden": (1, 1, 3 * H)}, seed=2)
    options: dict[str, Any] = {
        "speculators_model_type": "peagle",
        "eagle_aux_hidden_state_layer_ids": list(FUSED),
        "speculators_config": {"proposal_methods": [{"speculative_tokens": 4}]},
        "transformer_layer_config": {**LAYER, "model_type": "llama", "num_hidden_layers": 2},
    }
    folder = save(tmp_path, weights, **options, mask_token_id=MASK)
    assert guessed(folder, target) == eagle3_drafts(weights, target)
    with pytest.raises(InputError, match="it drafts 4 tokens, but depth 5"):
        guessed(folder, target, depth=5)
    save(tmp_path, weights, **options)
    with pytest.raises(FileFormatError, match="no 'mask_token_id'"):
        guessed(folder, target)


@pytest.mark.parametrize("from_anchor", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_dflash(target: HuggingFaceModel, tmp_path: Path, from_anchor: bool, causal: bool) -> None:
    """In the authors' format, which counts the target's layers from 0; the output head is the target's."""
    shapes = {"fc.weight": (H, 3 * H), "norm.weight": (H,), "hidden_norm.weight": (H,)}
    for i in range(2):
        shapes |= layer_shapes(f"layers.{i}", qk_norm=True)
    weights = random_weights(shapes)
    inner: dict[str, Any] = {"mask_token_id": MASK, "target_layer_ids": [i - 1 for i in FUSED], "causal": causal}
    config = {**LAYER, "model_type": "qwen3", "architectures": ["DFlashDraftModel"], "num_hidden_layers": 2}
    folder = save(
        tmp_path, weights, **config, block_size=BLOCK, dflash_config=inner | {"sample_from_anchor": from_anchor}
    )
    assert kind_of(folder) == "dflash"
    fused = torch.cat(target.hidden_states(np.array(TEXT), FUSED), dim=-1) @ weights["fc.weight"].T
    context = plain.normed(fused, weights["hidden_norm.weight"])
    expected: list[list[int]] = [[] for _ in range(DEPTH)]
    for root in range(FIRST - 1, len(TEXT) - 1):
        block = embed(target)([TEXT[root], *[MASK] * (BLOCK - 1)])
        out = plain.dflash(weights, block, context[:root], root, causal=causal)
        for d in range(1, min(DEPTH, len(TEXT) - 1 - root) + 1):
            expected[d - 1].append(int(target.head(out[d - from_anchor][None]).argmax()))
    assert guessed(folder, target) == expected
    with pytest.raises(InputError, match="guesses 4 tokens" if not from_anchor else "guesses 5 tokens"):
        guessed(folder, target, depth=BLOCK + from_anchor)


EXPERTS = {"moe_intermediate_size": 12, "num_experts_per_tok": 2}
MTP_TARGETS = {
    "deepseek_v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": plain.HEADS,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
        }
        | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    ),
    "glm4_moe": ("Glm4Moe", {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}),
    "qwen3_next": (
        "Qwen3Next",
        {"num_experts": 4, "shared_expert_intermediate_size": 12, "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    ),
}


@pytest.mark.parametrize("kind", MTP_TARGETS)
def test_mtp_modules_in_the_targets_checkpoint(kind: str, tmp_path: Path) -> None:
    """Against the library's own base model of one such layer, run over all pairs of a draft at once."""
    name, extra = MTP_TARGETS[kind]
    sizes = {**LAYER, **EXPERTS, **extra, "num_hidden_layers": 4, "initializer_range": 0.3, "pad_token_id": None}
    if kind == "deepseek_v3":
        del sizes["head_dim"]
    config = getattr(transformers, f"{name}Config")(**sizes, bos_token_id=None, eos_token_id=39)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
        module = one_layer(config).eval()
        for value in module.state_dict().values():
            value.copy_(0.3 * torch.randn(value.shape)) if value.is_floating_point() else None
        extra_weights = random_weights({"embedding": (H,), "state": (H,), "projection": (H, 2 * H)}, seed=4)
    model.save_pretrained(tmp_path)
    add_module(tmp_path, kind, module, extra_weights, after=4)
    target = HuggingFaceModel.load(str(tmp_path), device="cpu", dtype="float32")
    norm = type(module.norm)(H, eps=config.rms_norm_eps)
    zeroed = kind != "qwen3_next"

    def norm_by(weight: Any, x: Any) -> Any:
        norm.load_state_dict({"weight": weight})
        return norm(x)

    def run(embedded: Any, held: Any) -> Any:
        first = embedded * torch.where(torch.arange(len(embedded)) == 0, 0.0, 1.0)[:, None] if zeroed else embedded
        pair = torch.cat([norm_by(extra_weights["embedding"], first), norm_by(extra_weights["state"], held)], dim=-1)
        x = (pair @ extra_weights["projection"].T)[None]
        with torch.no_grad():
            return outputs(module, x, before_norm=kind == "glm4_moe")

    def guess(out: Any) -> int:
        with torch.no_grad():
            return int(target.head((module.norm(out) if kind == "glm4_moe" else out)[None]).argmax())

    expected = plain.drafted(
        TEXT,
        FIRST,
        DEPTH,
        states=target.last_hidden(np.array(TEXT)),
        embed=embed(target),
        run=run,
        guess=guess,
        further=lambda token, out: (embed(target)([token])[0], out),
    )
    assert guessed("mtp", target) == expected


def one_layer(config: Any) -> Any:
    """The library's base model of a single late layer: full attention, experts."""
    import copy

    own = copy.deepcopy(config)
    own.num_hidden_layers, own.first_k_dense_replace = 1, 0
    if getattr(own, "layer_types", None):
        own.layer_types = ["full_attention"]
    return transformers.AutoModel.from_config(own)


def outputs(module: Any, x: Any, *, before_norm: bool) -> Any:
    kept: list[Any] = []
    hook = module.layers[0].register_forward_hook(
        lambda layer, given, out: kept.append((out[0] if isinstance(out, tuple) else out)[0])
    )
    try:
        behind = module(inputs_embeds=x, use_cache=False).last_hidden_state[0]
    finally:
        hook.remove()
    return kept[0] if before_norm else behind


def add_module(folder: Path, kind: str, module: Any, extra: dict[str, Any], *, after: int) -> None:
    """Write a module's weights into a checkpoint under their published names, experts one by one."""
    if kind == "qwen3_next":
        prefix, layer = "mtp.", "mtp.layers.0."
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
    else:
        prefix = layer = f"model.layers.{after}."
        names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    values = (extra["embedding"], extra["state"], extra["projection"], module.norm.weight.data)
    weights = {f"{prefix}{name}.weight": value for name, value in zip(names, values, strict=True)}
    if kind != "qwen3_next":
        weights[f"{prefix}shared_head.head.weight"] = torch.zeros(V, H)  # a copy that is not read
        weights[f"{prefix}embed_tokens.weight"] = torch.zeros(V, H)
    for name, value in module.layers[0].state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(value):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    weights[f"{layer}{name.removesuffix('gate_up_proj')}{e}.{part}_proj.weight"] = half
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(value):
                weights[f"{layer}{name.removesuffix('down_proj')}{e}.down_proj.weight"] = down
        else:
            weights[f"{layer}{name}"] = value
    path = folder / "model.safetensors"
    whole = safetensors.load_file(path) | {name: value.contiguous() for name, value in weights.items()}
    safetensors.save_file(whole, path, metadata={"format": "pt"})


def test_heads_that_do_not_fit_are_refused(target: HuggingFaceModel, tmp_path: Path) -> None:
    config = {**LAYER, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"]}
    right = eagle3_weights()
    for changed, message in (
        ({name: value for name, value in right.items() if name != "norm.weight"}, r"'norm.weight' is missing"),
        (right | {"extra.weight": torch.zeros(1)}, r"'extra.weight' is \(1,\), expected nothing"),
        (right | {"fc.weight": right["fc.weight"].to(torch.int8)}, r"'fc.weight' holds torch.int8"),
        (right | {"d2t": torch.zeros(DRAFTED, dtype=torch.int64) + V}, r"'d2t' does not map"),
        ({"norm.weight": right["norm.weight"]}, r"no 'fc.weight'"),
    ):
        with pytest.raises(FileFormatError, match=message):
            guessed(save(tmp_path, changed, **config), target)
    with pytest.raises(FileFormatError, match="hidden_size is 32, the target's 16"):
        guessed(save(tmp_path, right, **{**config, "hidden_size": 32, "architectures": ["EagleModel"]}), target)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(FileFormatError, match="cannot be read"):
        guessed(tmp_path, target)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no model.safetensors or pytorch_model.bin"):
        guessed(tmp_path, target)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}, "model"),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3"),
        ({"speculators_model_type": "dflash"}, "dflash"),
        ({"architectures": ["PEagleDraftModel"]}, "peagle"),
        ({"medusa_num_heads": 3}, "medusa"),
    ],
)
def test_the_kind_is_in_the_config(config: dict[str, Any], kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kind_of(tmp_path) == kind
    assert parse_draft(str(tmp_path)).kind == kind


@pytest.mark.parametrize(
    "config", [{"architectures": ["Qwen3DSparkModel"]}, {"speculators_model_type": "dflash2"}, {"pard_token": 3}]
)
def test_what_cannot_be_collected_says_so(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="cannot be collected"):
        parse_draft(str(tmp_path))
