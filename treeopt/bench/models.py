"""Target, drafter and prompts of a bench, loaded as `treeopt ranks collect` names them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from treeopt.bench.lanes import Subject
from treeopt.bench.texts import PROMPTS
from treeopt.collect.drafters import check_pair
from treeopt.collect.models import CausalModel, Encoder
from treeopt.collect.prompts import Prompt, read_prompts
from treeopt.collect.settings import Draft, parse_draft
from treeopt.decode.decoder import Decoding
from treeopt.decode.drafters import LookupDrafter, ModelDrafter
from treeopt.decode.drafting import Drafter
from treeopt.decode.hf import HuggingFaceModel
from treeopt.decode.rules import rule_named
from treeopt.errors import InputError, UnknownNameError
from treeopt.plan.plan import Plan

CLOCKS: Final[dict[str, Callable[[], float]]] = {"wall": time.perf_counter, "cpu": time.process_time}
# What a plan's dtype is called where models are loaded; weights in other formats are loaded as they are.
_LOADED_AS: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DTYPES: Final = ("auto", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to load.

    Args:
        target: directory, .gguf file or hub id.
        draft: `ngram[:N]`, `early-exit:K`, or a model as for `target`.
        prompts: JSONL; None: the built-in ones.
        device: auto, cpu, cuda.
        dtype: `auto` is the plan's.
        clock: seconds that pass, or seconds that this process computes (one thread, on a machine that others use).

    Raises:
        UnknownNameError: a drafter, dtype or clock that is not known.
        InputError: a drafter that the decoder cannot run.
    """

    target: str
    draft: str
    prompts: Path | None = None
    new_tokens: int = 64
    device: str = "auto"
    dtype: str = "auto"
    clock: str = "wall"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UnknownNameError("dtype", self.dtype, DTYPES)
        if self.clock not in CLOCKS:
            raise UnknownNameError("clock", self.clock, CLOCKS)
        if self.drafter.kind == "medusa":
            raise InputError(
                "the reference decoder does not run Medusa heads: drafters do not see the target's hidden states",
                hint="bench with early-exit:K, ngram:N or a draft model",
            )

    @property
    def drafter(self) -> Draft:
        """The parsed `draft`."""
        return parse_draft(self.draft)

    def load(self, plan: Plan) -> Subject:
        """Read the prompts, then the weights.

        Raises:
            InputError: a file or model cannot be read, or drafter and target do not go together.
        """
        encoder = Encoder.load(self.target)
        check_pair(self.drafter, encoder)
        prompts = [encoder.encode(prompt, max_new_tokens=self.new_tokens) for prompt in self._prompts()]
        dtype = _LOADED_AS.get(dict(plan.model.facts).get("dtype", ""), "auto") if self.dtype == "auto" else self.dtype
        target = HuggingFaceModel(CausalModel.load(self.target, device=self.device, dtype=dtype))
        decoding = self._decoding(plan, target)
        return Subject(
            target=target,
            drafter=self._drafter(target, dtype, decoding.temperature),
            decoding=decoding,
            prompts=tuple(tuple(tokens.tolist()) for tokens in prompts),
            clock=CLOCKS[self.clock],
        )

    def _prompts(self) -> list[Prompt]:
        if self.prompts is not None:
            return read_prompts(self.prompts)
        return [Prompt(doc_id=i, where=f"built-in prompt {i}", content=text) for i, text in enumerate(PROMPTS)]

    def _decoding(self, plan: Plan, target: HuggingFaceModel) -> Decoding:
        rule = rule_named(plan.rule)
        temperature = float(dict(plan.ranks.facts).get("temperature") or 1.0) if rule.samples else 0.0
        return Decoding(
            rule=rule,
            temperature=temperature,
            max_new_tokens=self.new_tokens,
            end_tokens=target.end_tokens,
            seed=self.seed,
        )

    def _drafter(self, target: HuggingFaceModel, dtype: str, temperature: float) -> Callable[[], Drafter]:
        draft, V = self.drafter, target.vocabulary_size
        if draft.kind == "ngram":
            return lambda: LookupDrafter(longest=draft.number, vocabulary_size=V)
        if draft.kind == "early-exit":
            model = target.early_exit(draft.number)
        else:
            model = HuggingFaceModel.load(draft.argument, device=self.device, dtype=dtype)
        return lambda: ModelDrafter(model, vocabulary_size=V, temperature=temperature)
