"""LMDeploy: one chain, in the keys of `SpeculativeConfig` (lmdeploy 0.18)."""

from __future__ import annotations

import json
from typing import Final

from treeopt.draft_family import Chains
from treeopt.engines.format import DRAFTER, Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.tree import DraftTree

_DRAFTERS: Final = Drafters(
    engine="LMDeploy",
    words={
        "eagle": DrafterWord(text="eagle"),
        "eagle3": DrafterWord(text="eagle3"),
        "mtp": DrafterWord(text="deepseek_mtp", has_model=False),
        "dflash": DrafterWord(text="dflash"),
    },
    default="eagle3",
)


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    model = {"model": setup.draft_model} if word.has_model or setup.draft_model != DRAFTER else {}
    config = {"method": word.text, **model, "num_speculative_tokens": schedule.longest}
    return Written(
        content=json.dumps(config, indent=2),
        file_name="lmdeploy_speculative_config.json",
        launch=f"pipeline({setup.model!r}, speculative_config=SpeculativeConfig(**config))",
        proof="no metric is known: compare the time per token with a run without speculation",
    )


def _read(source: EngineFile) -> Found | None:
    section = source.section("speculative_config")
    if section is None or "num_speculative_tokens" not in section.value:
        return None
    chain = DraftTree.chain(section.get("num_speculative_tokens").integer(low=1))
    return Found(DraftSchedule.constant(chain), (), _DRAFTERS.kind_of(section.get("method", "").text()))


LMDEPLOY: Final = Engine(
    name="lmdeploy",
    title="LMDeploy",
    length_setting="num_speculative_tokens",
    checked="0.18.0",
    checked_by="own code",
    formats=(Format(name="config", limits=Chains(), write=_write, read=_read, drafters=_DRAFTERS),),
)
