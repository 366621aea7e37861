"""Target, drafter and prompts of a bench, loaded as `treeopt ranks collect` names them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from treeopt.bench.runs import DecodingSetup
from treeopt.collect.drafters import check_drafts_trees, check_pair, load_tree_drafter
from treeopt.collect.encoder import Encoder
from treeopt.collect.prompts import Prompt, read_prompts
from treeopt.collect.settings import DrafterSpec, parse_draft
from treeopt.decode.decoder import Decoding
from treeopt.decode.hf import HuggingFaceModel
from treeopt.decode.rules import rule_named
from treeopt.errors import UnknownNameError
from treeopt.plan.plan import Plan

PROMPTS: Final = (
    "The harbour was quiet that morning, and the keeper of the lighthouse",
    "Here is a list of the planets of the solar system, one per line:\n1.",
    "def mean(values):\n    ",
    "Q: Why is the sky blue?\nA:",
    "Dear customer,\nthank you for your order. We are sorry to tell you that",
    "To make bread you need flour, water, salt and yeast. First,",
    '{"name": "Alice", "age": 31, "city": "Oslo"}\n{"name": "Bob",',
    "SELECT name, price FROM products WHERE",
    "Summary of the meeting: the team agreed on three points. First,",
    "English: Good morning. French: Bonjour. English: Good night. French:",
    "The train left the station at nine. At ten, the conductor",
    "A triangle has sides of length 3, 4 and 5. Its area is",
    "<ul>\n  <li>apples</li>\n  <li>pears</li>\n",
    "In 1969 two astronauts landed on the moon. They",
    "Roses are red,\nviolets are blue,\n",
    "How to change a tyre, step by step:\n1. Park the car on level ground.\n2.",
)


CLOCKS: Final[dict[str, Callable[[], float]]] = {"wall": time.perf_counter, "cpu": time.process_time}
# What a plan's dtype is called where models are loaded; weights in other formats are loaded as they are.
_LOADED_AS: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DTYPES: Final = ("auto", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
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
        check_drafts_trees(self.drafter)

    @property
    def drafter(self) -> DrafterSpec:
        """The parsed `draft`."""
        return parse_draft(self.draft)

    def load(self, plan: Plan) -> DecodingSetup:
        """Read the prompts, then the weights.

        Raises:
            InputError: a file or model cannot be read, or drafter and target do not go together.
        """
        encoder = Encoder.load(self.target)
        check_pair(self.drafter, encoder)
        prompts = [encoder.encode(prompt, max_new_tokens=self.new_tokens) for prompt in self._prompts()]
        dtype = _LOADED_AS.get(plan.sources.model.dtype, "auto") if self.dtype == "auto" else self.dtype
        target = HuggingFaceModel.load(self.target, device=self.device, dtype=dtype)
        decoding = self._decoding(plan, target)
        return DecodingSetup(
            target=target,
            drafter=load_tree_drafter(
                self.drafter, target, temperature=decoding.temperature, device=self.device, dtype=dtype
            ),
            decoding=decoding,
            prompts=tuple(tuple(tokens.tolist()) for tokens in prompts),
            clock=CLOCKS[self.clock],
        )

    def _prompts(self) -> list[Prompt]:
        if self.prompts is not None:
            return read_prompts(self.prompts)
        return [Prompt(doc_id=i, where=f"built-in prompt {i}", content=text) for i, text in enumerate(PROMPTS)]

    def _decoding(self, plan: Plan, target: HuggingFaceModel) -> Decoding:
        rule = rule_named(plan.verification.rule)
        temperature = plan.sources.ranks.temperature or 1.0 if rule.samples else 0.0
        return Decoding(
            rule=rule,
            temperature=temperature,
            max_new_tokens=self.new_tokens,
            end_tokens=target.end_tokens,
            seed=self.seed,
        )
