"""Engines that load one chain length: llama.cpp, Transformers, TGI, LMDeploy, speculators.

Sources: llama-server's `--spec-draft-*` flags (`--draft-max` before), transformers 5 `GenerationConfig`,
text-generation-inference at db931fc `--speculate`, lmdeploy 0.18 `SpeculativeConfig`, speculators 0.9
`speculators_config.proposal_methods`.
"""

from __future__ import annotations

import json
from typing import Final

from treeopt.draft_family import Chains, chain_length
from treeopt.engines.format import DRAFTER, Format, Found, Methods, Setup, Written, one_format
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.errors import InputError
from treeopt.tree import DraftTree

_LMDEPLOY_METHODS: Final = Methods(
    engine="LMDeploy", words={"eagle": "eagle", "eagle3": "eagle3", "mtp": "deepseek_mtp"}, default="eagle3"
)
_LLAMA_TYPES: Final = {"eagle3": "draft-eagle3", "mtp": "draft-mtp", "model": "draft-simple"}


def _write_llamacpp(schedule: DraftSchedule, setup: Setup) -> Written:
    length = _length(schedule)
    flags = f"--spec-draft-n-max {length} --spec-draft-n-min 0 --spec-draft-p-min 0"
    kind = setup.method or _LLAMA_TYPES.get(setup.kind or "")
    drafter = "" if kind == _LLAMA_TYPES["mtp"] else f" -md {setup.draft_model}"
    kind_flag = "" if kind is None else f" --spec-type {kind}"
    return Written(
        content=flags,
        file_name="llamacpp_flags.txt",
        launch=f"llama-server -m {setup.model}{drafter}{kind_flag} {flags}",
        proof="the server log's 'draft acceptance = ... ( accepted / generated)' after each request: generated / "
        f"drafts is {length}",
        notes=(
            "--spec-draft-p-min 0 keeps every draft; with its default llama.cpp stops drafting where it is unsure",
            "older builds call the flags --draft-max, --draft-min and --draft-p-min",
        ),
    )


def _write_transformers(schedule: DraftSchedule, setup: Setup) -> Written:
    length = _length(schedule)
    config = {
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    return Written(
        content=json.dumps(config, indent=2),
        file_name="generation_config.json",
        launch="assistant.generation_config.update(**config); model.generate(..., assistant_model=assistant)",
        proof="no metric is known: count the target's forward passes",
        notes=(
            "these keys belong into the ASSISTANT model's generation_config.json",
            "a threshold above 0 ends drafts early",
        ),
    )


def _write_tgi(schedule: DraftSchedule, setup: Setup) -> Written:
    flags = f"--speculate {_length(schedule)}"
    return Written(
        content=flags,
        file_name="tgi_flags.txt",
        launch=f"text-generation-launcher --model-id {setup.model} {flags}",
        proof="tgi_request_skipped_tokens on /metrics is above 0",
        notes=("the number of Medusa heads used, or of n-gram tokens where the model has no heads",),
    )


def _write_lmdeploy(schedule: DraftSchedule, setup: Setup) -> Written:
    method = _LMDEPLOY_METHODS.word(setup)
    model = {} if method.endswith("mtp") and setup.draft_model == DRAFTER else {"model": setup.draft_model}
    config = {"method": method, **model, "num_speculative_tokens": _length(schedule)}
    return Written(
        content=json.dumps(config, indent=2),
        file_name="lmdeploy_speculative_config.json",
        launch=f"pipeline({setup.model!r}, speculative_config=SpeculativeConfig(**config))",
        proof="no metric is known: compare the time per token with a run without speculation",
    )


def _write_speculators(schedule: DraftSchedule, setup: Setup) -> Written:
    methods = [{"proposal_type": "greedy", "speculative_tokens": _length(schedule), "verifier_accept_k": 1}]
    config = {"speculators_config": {"proposal_methods": methods, "default_proposal_method": "greedy"}}
    return Written(
        content=json.dumps(config, indent=2),
        file_name="config.json",
        launch=f"vllm serve {setup.draft_model}",
        proof="vllm:spec_decode_num_draft_tokens_total / vllm:spec_decode_num_drafts_total on /metrics: "
        f"{_length(schedule)}",
        notes=("these keys belong into the drafter's config.json, which vLLM reads",),
    )


def _read_llamacpp(source: EngineFile) -> Found | None:
    return _chain(source.flag_number("spec-draft-n-max", "draft-max", "draft-n", "draft"))


def _read_tgi(source: EngineFile) -> Found | None:
    return _chain(source.flag_number("speculate"))


def _read_transformers(source: EngineFile) -> Found | None:
    section = source.section()
    if section is None or "num_assistant_tokens" not in section.value or "tree_depth" in section.value:
        return None
    kind = section.get("num_assistant_tokens_schedule", "constant").text()
    notes = () if kind == "constant" else (f"with the schedule '{kind}' Transformers changes the length as it goes",)
    return _chain(section.get("num_assistant_tokens").integer(low=1), notes)


def _read_lmdeploy(source: EngineFile) -> Found | None:
    section = source.section("speculative_config")
    if section is None or "num_speculative_tokens" not in section.value:
        return None
    return _chain(section.get("num_speculative_tokens").integer(low=1))


def _read_speculators(source: EngineFile) -> Found | None:
    section = source.section("speculators_config")
    if section is None or "proposal_methods" not in section.value:
        return None
    methods = list(section.get("proposal_methods").items())
    if len(methods) != 1:
        raise section.get("proposal_methods").error(f"{len(methods)} methods", hint="give one")
    return _chain(methods[0].get("speculative_tokens").integer(low=1))


def _chain(length: int | None, notes: tuple[str, ...] = ()) -> Found | None:
    return Found(DraftSchedule.constant(DraftTree.chain(length)), notes) if length else None


def _length(schedule: DraftSchedule) -> int:
    length = None if schedule.only is None else chain_length(schedule.only)
    if not length:
        raise InputError("this engine loads one chain", hint="give one chain of 1 token or more")
    return length


_LIMITS: Final = Chains()


LLAMACPP: Final = one_format(
    "llamacpp",
    "llama.cpp",
    "commit of 2026-11",
    Format(name="flags", limits=_LIMITS, write=_write_llamacpp, read=_read_llamacpp),
    *_LLAMA_TYPES,
)
TRANSFORMERS: Final = one_format(
    "transformers",
    "Transformers",
    "5.19.0",
    Format(name="generation", limits=_LIMITS, write=_write_transformers, read=_read_transformers),
    *("model", "mtp"),
)
TGI: Final = one_format(
    "tgi",
    "TGI",
    "commit db931fc",
    Format(name="flags", limits=_LIMITS, write=_write_tgi, read=_read_tgi),
    *("medusa", "ngram"),
)
LMDEPLOY: Final = one_format(
    "lmdeploy",
    "LMDeploy",
    "0.18.0",
    Format(name="config", limits=_LIMITS, write=_write_lmdeploy, read=_read_lmdeploy, methods=_LMDEPLOY_METHODS),
)
SPECULATORS: Final = one_format(
    "speculators",
    "speculators",
    "0.9.0",
    Format(name="config", limits=_LIMITS, write=_write_speculators, read=_read_speculators),
)
