"""Text Generation Inference: `--speculate N` Medusa heads, or N tokens from n-grams where the model has no heads.

Flag: text-generation-inference at db931fc.
"""

from __future__ import annotations

from typing import Final

from treeopt.draft_family import Chains
from treeopt.engines.format import Drafters, DrafterWord, Engine, Format, Found, Setup, Written
from treeopt.engines.schedule import DraftSchedule
from treeopt.engines.source import EngineFile
from treeopt.tree import DraftTree

_DRAFTERS: Final = Drafters(
    engine="TGI",
    words={"medusa": DrafterWord(text="", has_model=False), "ngram": DrafterWord(text="", has_model=False)},
)


def _write(schedule: DraftSchedule, setup: Setup, word: DrafterWord) -> Written:
    flags = f"--speculate {schedule.longest}"
    return Written(
        content=flags,
        file_name="tgi_flags.txt",
        launch=f"text-generation-launcher --model-id {setup.model} {flags}",
        proof="tgi_request_skipped_tokens on /metrics is above 0",
        notes=("the number of Medusa heads used, or of n-gram tokens where the model has no heads",),
    )


def _read(source: EngineFile) -> Found | None:
    length = source.flag_number("speculate")
    return Found(DraftSchedule.constant(DraftTree.chain(length))) if length else None


TGI: Final = Engine(
    name="tgi",
    title="TGI",
    length_setting="--speculate",
    checked="commit db931fc",
    checked_by="documentation only",
    formats=(Format(name="flags", limits=Chains(), write=_write, read=_read, drafters=_DRAFTERS),),
)
