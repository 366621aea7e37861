"""The kinds of drafters, by what each runs to guess a tree.

Heads are published in 16 bit whatever the target is quantised to; an MTP layer is a part of the target's checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from treeopt.cost.block_drafters import DRAFT_VOCAB, BlockHeads, ParallelEagle, Pard, as_model, dense, in_16_bit
from treeopt.cost.drafting import Drafting, Free, Heads, Passes
from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.kernels.gemm import Gemm
from treeopt.cost.model import ModelShape


@dataclass(frozen=True, kw_only=True)
class Eagle:
    """One decoder layer on the target's hidden states and token embeddings, then the target's LM head; D passes.

    The layer has the target's attention and a dense feed-forward block as wide as the target's `intermediate`, for a
    target with experts too, as SpecForge's head for Qwen3-30B-A3B has. The 2h -> h fusion is copied to every GPU, as in
    vLLM. Source: EAGLE, arXiv 2401.15077.
    """

    kind: ClassVar[str] = "eagle"
    note: ClassVar[str] = ""

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`."""
        layer = dense(target.network, 1)
        return Passes(network=in_16_bit(target, layer), fusion=_fusion(layer.hidden))


@dataclass(frozen=True, kw_only=True)
class Eagle3:
    """One decoder layer whose attention reads hidden state and embedding, and an LM head over fewer tokens; D passes.

    Hidden states of three layers of the target are fused, 3h -> h, for the accepted tokens only; later passes take the
    layer's own output. The fusion is copied to every GPU. `head` is the head's own shape; without it the layer is as
    wide as the target's dense one. Source: EAGLE-3, arXiv 2503.01840; the two reads of the attention and the reduced
    vocabulary are those of the published heads' config.json.
    """

    kind: ClassVar[str] = "eagle3"
    head: ModelShape | None = None

    @property
    def note(self) -> str:
        """Where the size of the vocabulary is a guess."""
        if self.head and self.head.draft_vocab:
            return ""
        return f"the EAGLE-3 head is taken to choose among {DRAFT_VOCAB:,} tokens; give eagle3:CONFIG_JSON of your head"

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`.

        Raises:
            InputError: a tp that the head's own heads do not divide by.
        """
        vocab = (self.head and self.head.draft_vocab) or DRAFT_VOCAB
        shape = self.head.shard(target.tp) if self.head else target.network
        layer = replace(dense(shape, 1), vocab=-(-vocab // target.tp))
        return Passes(
            network=replace(in_16_bit(target, layer), attention_inputs=2 * layer.hidden),
            entry=(Gemm(layer.hidden, 3 * target.network.hidden),),
            own_vocab_bytes=layer.lm_head.weights * target.formats.wide.bytes_per_value,
        )


@dataclass(frozen=True, kw_only=True)
class Mtp:
    """One layer of the target's own kind, experts included, after a 2h -> h fusion, and its LM head; D passes.

    Source: DeepSeek-V3, arXiv 2412.19437, section 2.2.
    """

    kind: ClassVar[str] = "mtp"
    note: ClassVar[str] = ""

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`."""
        experts = target.network.experts and replace(target.network.experts, dense_layers=0)
        layer = replace(target.network, layers=1, experts=experts, window=None, linear=None)
        return Passes(network=replace(target, network=layer), fusion=_fusion(layer.hidden))


@dataclass(frozen=True, kw_only=True)
class Medusa:
    """One head per depth, each a residual h x h block and an own LM head, all in one pass over B tokens.

    Source: Medusa, arXiv 2401.10774.
    """

    kind: ClassVar[str] = "medusa"
    note: ClassVar[str] = ""
    heads: int | None = None

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`."""
        return Heads(target=target, heads=self.heads)


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """A separate smaller model in its own checkpoint's format, D passes of it on the target's GPUs, with its tp."""

    kind: ClassVar[str] = "model"
    note: ClassVar[str] = ""
    model: ModelShape

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`.

        Raises:
            InputError: a tp that the draft model's heads do not divide by.
        """
        network = as_model(target, self.model)
        embeddings = network.network.embedding_parameters * network.formats.wide.bytes_per_value
        return Passes(network=network, own_vocab_bytes=embeddings)


@dataclass(frozen=True, kw_only=True)
class Ngram:
    """Guesses looked up in the text so far: nothing runs on the GPU."""

    kind: ClassVar[str] = "ngram"
    note: ClassVar[str] = ""

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`: none."""
        return Free()


@dataclass(frozen=True, kw_only=True)
class Suffix:
    """Suffix decoding: guesses from suffix trees of earlier texts on the CPU, as many as match.

    Source: arXiv 2411.04975; vLLM's method `suffix`.
    """

    kind: ClassVar[str] = "suffix"
    note: ClassVar[str] = "suffix trees are searched on the CPU, which has no price here"

    def drafting(self, target: ForwardPass) -> Drafting:
        """Its price beside `target`: none on the GPU."""
        return Free()


OnePass = BlockHeads | ParallelEagle | Pard
"""Drafters whose pass is as wide as the engine was started with."""
Drafter = Eagle | Eagle3 | Mtp | Medusa | DraftModel | Ngram | Suffix | OnePass


def _fusion(hidden: int) -> tuple[Gemm, ...]:
    return (Gemm(hidden, 2 * hidden),)


# Of each kind of drafter that ranks are collected with (the first word of a trace's `drafter`), the one above whose
# passes it takes; a drafter without such a word is a model of its own.
PRICED_AS: Final[dict[str, str]] = {
    "ngram": "ngram",
    "early-exit": "model",
    "model": "model",
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "mtp": "mtp",
    "dflash": "dflash",
    "peagle": "peagle",
}
