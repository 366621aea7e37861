"""Drafts of random heads against their own packages' code: eagle-llm 1.2.1, speculators 0.9.0; token by token."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conformance.wheels import installed, needs_conformance, wheel

from treeopt.collect.drafters import load_drafter
from treeopt.collect.settings import parse_draft
from treeopt.decode.hf import HuggingFaceModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = [needs_conformance, pytest.mark.filterwarnings("ignore")]

V, H, FIRST, FUSED, BLOCK, MASK = 40, 16, 4, (1, 3, 5), 5, 38
TEXT = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4])
L = len(TEXT)
SIZES = {
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
SPECULATORS = (
    *("speculators==0.9.0", "hs-connectors==0.9.0", "datasets==5.1.0", "dill", "multiprocess", "pandas", "xxhash"),
    *("loguru", "pydantic-settings", "python-dotenv", "openai", "distro", "jiter", "sniffio"),
)


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """A package's modules for one test: what they pull in shadows nothing afterwards."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("eagle", "speculators"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(**SIZES, num_hidden_layers=6, initializer_range=0.6, pad_token_id=None)
    place = tmp_path_factory.mktemp("target")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def target(folder: Path) -> HuggingFaceModel:
    return HuggingFaceModel.load(str(folder), device="cpu", dtype="float32")


def ours(place: Path, target: HuggingFaceModel, depth: int = 4) -> list[list[int]]:
    drafter = load_drafter(parse_draft(str(place)), target, temperature=0.0, depth=depth, device="cpu", dtype="float32")
    return [guesses.top(1)[:, 0].tolist() for guesses in drafter.along(TEXT, first=FIRST, depth=depth)]


def randomise(head: Any, target: HuggingFaceModel) -> None:
    with torch.no_grad():
        for parameter in head.parameters():
            scale, middle = (0.3, 0.0) if parameter.ndim > 1 else (0.2, 1.0)
            parameter.copy_(torch.randn_like(parameter) * scale + middle)
        head.embed_tokens.weight.copy_(target.embed(np.arange(V)))


def test_eagle(target: HuggingFaceModel, tmp_path: Path) -> None:
    fields: dict[str, Any] = {**SIZES, "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
    del fields["head_dim"]  # their code has none: it is 16 / 4
    with importable(wheel("eagle-llm", "1.2.1")), torch.random.fork_rng():
        torch.manual_seed(3)
        more = {"rope_scaling": None, "rope_theta": 10000.0, "pretraining_tp": 1, "pad_token_id": 0}
        head = importlib.import_module("eagle.model.cnets").Model(SimpleNamespace(**fields, **more), bias=True)
        randomise(head, target)
        head.reset()
        safetensors.save_file(head.state_dict(), tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({**fields, "model_type": "llama"}))
        states = target.last_hidden(TEXT)[None]
        theirs: list[list[int]] = [[] for _ in range(4)]
        for root in range(FIRST - 1, L - 1):
            held, tokens = states[:, :root], torch.tensor(TEXT[1 : root + 1])[None]
            for d in range(1, min(4, L - 1 - root) + 1):
                with torch.no_grad():
                    out = head(held, input_ids=tokens)[:, -1:]
                theirs[d - 1].append(int(target.head(out[0]).argmax()))
                held = torch.cat([held, out], dim=1)
                tokens = torch.cat([tokens, torch.tensor([[int(TEXT[root + d])]])], dim=1) if root + d < L else tokens
    assert ours(tmp_path, target) == theirs


def built(kind: str, folder: Path, target: HuggingFaceModel, layer: dict[str, Any], **options: Any) -> Any:
    """A random head of speculators' own class, with 20 tokens where it has a vocabulary of its own."""
    config, proposals = (importlib.import_module(f"speculators.{name}") for name in ("config", "proposals.greedy"))
    package = importlib.import_module(f"speculators.models.{kind}")
    name = {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash"}[kind]
    sizes = getattr(transformers, layer.pop("config"))(**SIZES, **layer)
    sizes._attn_implementation = "eager"
    settings = config.SpeculatorsConfig(
        algorithm=kind,
        proposal_methods=[proposals.GreedyTokenProposalConfig(speculative_tokens=4)],
        default_proposal_method="greedy",
        verifier=config.VerifierConfig(name_or_path=str(folder), architectures=["LlamaForCausalLM"]),
    )
    own = getattr(package, f"{name}SpeculatorConfig")(
        transformer_layer_config=sizes, speculators_config=settings, **options
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = getattr(package, f"{name}DraftModel")(own).eval()
        randomise(head, target)
        if options["draft_vocab_size"] < V:
            kept = torch.randperm(V)[: options["draft_vocab_size"]].sort().values
            listed = torch.zeros(V, dtype=torch.bool)
            listed[kept] = True
            head.load_vocab_mappings(listed, kept - torch.arange(len(kept)))
        else:
            head.lm_head.weight.data.copy_(target.head_weight)
    return head


def as_the_targets(head: Any, tokens: Any) -> Any:
    return tokens if head.d2t is None else tokens + head.d2t[tokens]


def fused(target: HuggingFaceModel) -> Any:
    return torch.cat(target.hidden_states(TEXT, FUSED), dim=-1)[None]


@pytest.mark.parametrize("config", ["LlamaConfig", "Qwen3Config"])
@pytest.mark.parametrize("flag", [None, "norm_before_residual", "norm_output", "fc_norm", "norm_before_fc"])
def test_eagle3(folder: Path, target: HuggingFaceModel, tmp_path: Path, config: str, flag: str | None) -> None:
    options: dict[str, Any] = {"draft_vocab_size": 20, "eagle_aux_hidden_state_layer_ids": list(FUSED)}
    with importable(installed(*SPECULATORS)):
        layer = {"config": config, "num_hidden_layers": 1}
        head = built("eagle3", folder, target, layer, **options, **({flag: True} if flag else {}))
        head.save_pretrained(tmp_path)
        with torch.no_grad():
            drafts = head(
                hidden_states=fused(target)[:, :-1],
                input_ids=torch.tensor(TEXT)[None, 1:],
                document_ids=torch.zeros(1, L - 1, dtype=torch.long),
                ttt_steps=4,
            )
    found = [as_the_targets(head, tokens[0])[FIRST - 2 : L - 2 - d].tolist() for d, tokens in enumerate(drafts)]
    assert ours(tmp_path, target) == found


@pytest.mark.parametrize(("config", "layers"), [("LlamaConfig", 1), ("Qwen3Config", 2)])
def test_p_eagle(
    folder: Path, target: HuggingFaceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, layers: int
) -> None:
    """Its forward is for training: which roots and depths it takes is handed to it, and the logits are caught."""
    n = L - 1
    anchors = torch.cat([torch.arange(n - d) for d in range(4)])
    depths = torch.cat([torch.full((n - d,), d) for d in range(4)])
    caught: dict[str, Any] = {}
    with importable(installed(*SPECULATORS)):
        options = {"draft_vocab_size": 20, "eagle_aux_hidden_state_layer_ids": list(FUSED), "mask_token_id": MASK}
        head = built("peagle", folder, target, {"config": config, "num_hidden_layers": layers}, **options)
        head.save_pretrained(tmp_path)
        core = importlib.import_module("speculators.models.peagle.core")
        monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **given: (anchors, depths))
        monkeypatch.setattr(core, "compute_metrics", lambda **given: (caught.update(given), (torch.tensor(0.0), {}))[1])
        with torch.no_grad():
            head(
                hidden_states=fused(target)[:, :-1],
                input_ids=torch.tensor(TEXT)[None, 1:],
                document_ids=torch.zeros(1, n, dtype=torch.long),
                verifier_last_hidden_states=target.last_hidden(TEXT)[None, :-1],
            )
    tokens = as_the_targets(head, caught["logits"][0].argmax(-1))
    found = [tokens[depths == d][FIRST - 2 : L - 2 - d].tolist() for d in range(4)]
    assert ours(tmp_path, target) == found


WINDOW = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
LAYER_TYPES = {"layer_types": ["full_attention", "sliding_attention"]}


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ({}, {}),
        ({}, {"draft_vocab_size": 20}),
        ({}, {"sample_from_anchor": True}),
        (WINDOW | LAYER_TYPES, {}),
        (WINDOW | LAYER_TYPES, {"sliding_window_non_causal": True}),
    ],
)
def test_dflash(
    folder: Path, target: HuggingFaceModel, tmp_path: Path, layer: dict[str, Any], options: dict[str, Any]
) -> None:
    roots = list(range(FIRST - 1, L - BLOCK))  # its training forward wants whole blocks of the text
    with importable(installed(*SPECULATORS)):
        chosen = {"draft_vocab_size": V, "block_size": BLOCK, "aux_hidden_state_layer_ids": list(FUSED)} | options
        own = {"config": "Qwen3Config", "num_hidden_layers": 2, **layer}
        head = built("dflash", folder, target, own, mask_token_id=MASK, **chosen)
        head.save_pretrained(tmp_path)
        head._create_mask_fn = importlib.import_module("speculators.models.attention").create_float_mask
        wanted = torch.zeros(1, L)
        wanted[0, roots] = 1
        with torch.no_grad():
            out = head._backbone_forward(
                fused(target),
                torch.tensor(TEXT)[None],
                wanted,
                target.last_hidden(TEXT)[None],
                torch.zeros(1, L, dtype=torch.long),
                max_anchors=len(roots),
            )
    tokens = as_the_targets(head, out[1][0].unflatten(0, (len(roots), BLOCK)).argmax(-1))
    anchored = bool(options.get("sample_from_anchor"))
    depth = BLOCK if anchored else BLOCK - 1
    found = [tokens[:, d if anchored else d + 1].tolist() for d in range(depth)]
    assert [guesses[: len(roots)] for guesses in ours(tmp_path, target, depth)] == found


def test_qwen3_next_mtp(tmp_path: Path) -> None:
    """Its layer over all pairs of a draft at once; the checkpoint is written under the published names."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    more = {"shared_expert_intermediate_size": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    config = transformers.Qwen3NextConfig(
        **SIZES, **experts, **more, num_hidden_layers=4, linear_key_head_dim=8, linear_value_head_dim=8
    )
    with importable(installed(*SPECULATORS)), torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Qwen3NextForCausalLM(config).eval()
        model.save_pretrained(tmp_path)
        model.config._attn_implementation = "sdpa"
        parts = importlib.import_module("speculators.models.mtp.model_definitions").mtp_model_classes["qwen3_next"]
        layer, turn = parts.first_layer_class(model.config).eval(), parts.rotary_emb_class(model.config)
        for parameter in layer.parameters():
            parameter.data.copy_(torch.randn_like(parameter) * 0.3)
        path = tmp_path / "model.safetensors"
        safetensors.save_file(safetensors.load_file(path) | published(layer), path, metadata={"format": "pt"})
        target = HuggingFaceModel.load(str(tmp_path), device="cpu", dtype="float32")
        states = target.last_hidden(TEXT)[None]
        theirs: list[list[int]] = [[] for _ in range(3)]
        for root in range(FIRST - 1, L - 1):
            held, tokens = states[:, :root], TEXT[1 : root + 1]
            for d in range(1, min(3, L - 1 - root) + 1):
                n = held.shape[1]
                where = torch.arange(n)[None]
                with torch.no_grad():
                    out = layer(
                        hidden_states=held,
                        token_embeddings=target.embed(tokens)[None],
                        attention_mask=torch.ones(1, 1, n, n).tril().bool(),
                        position_ids=where,
                        position_embeddings=turn(held, where),
                    )[:, -1:]
                theirs[d - 1].append(int(target.head(out[0]).argmax()))
                held, tokens = torch.cat([held, out], dim=1), np.append(tokens, TEXT[min(root + d, L - 1)])
    drafter = load_drafter(parse_draft("mtp"), target, temperature=0.0, depth=3, device="cpu", dtype="float32")
    assert [g.top(1)[:, 0].tolist() for g in drafter.along(TEXT, first=FIRST, depth=3)] == theirs


def published(layer: Any) -> dict[str, Any]:
    """A layer of speculators' under the names of Qwen3-Next's checkpoints, experts one by one."""
    names = {
        "hidden_layernorm.weight": "mtp.pre_fc_norm_hidden.weight",
        "token_layernorm.weight": "mtp.pre_fc_norm_embedding.weight",
        "input_proj.weight": "mtp.fc.weight",
        "final_layernorm.weight": "mtp.norm.weight",
    }
    found = {}
    for name, value in layer.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(value):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    found[f"mtp.layers.0.mlp.experts.{e}.{part}_proj.weight"] = half.contiguous()
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(value):
                found[f"mtp.layers.0.mlp.experts.{e}.down_proj.weight"] = down.contiguous()
        else:
            found[names.get(name, f"mtp.layers.0.{name}")] = value
    return found
