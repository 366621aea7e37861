"""speculators: one chain, in the drafter's own `config.json`, which vLLM reads (speculators 0.9)."""

from __future__ import annotations

import json
from typing import Final

from treeopt.draft_family import Chains
from treeopt.engines.format import DRAFT_TOKENS, Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.tree import DraftTree

_DRAFTERS: Final = Drafters(engine="speculators", words={k: DrafterWord(text="") for k in ("eagle3", "eagle")})
_METHODS: Final = "proposal_methods"


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    methods = [{"proposal_type": "greedy", "speculative_tokens": schedule.longest, "verifier_accept_k": 1}]
    config = {"speculators_config": {_METHODS: methods, "default_proposal_method": "greedy"}}
    return Written(
        content=json.dumps(config, indent=2),
        file_name="config.json",
        launch=f"vllm serve {setup.draft_model}",
        proof="vllm:spec_decode_num_draft_tokens_total / vllm:spec_decode_num_drafts_total on /metrics, the "
        f"{DRAFT_TOKENS}, is {schedule.longest}",
        notes=("these keys belong into the drafter's config.json, which vLLM reads",),
    )


def _read(source: EngineFile) -> Found | None:
    section = source.section("speculators_config")
    if section is None or _METHODS not in section.value:
        return None
    methods = list(section.get(_METHODS).items())
    if len(methods) != 1:
        raise section.get(_METHODS).error(f"{len(methods)} methods", hint="give one")
    return Found(DraftSchedule.constant(DraftTree.chain(methods[0].get("speculative_tokens").integer(low=1))))


SPECULATORS: Final = Engine(
    name="speculators",
    title="speculators",
    length_setting="speculative_tokens",
    checked="0.9.0",
    checked_by="own code",
    formats=(Format(name="config", limits=Chains(), write=_write, read=_read, drafters=_DRAFTERS),),
)
