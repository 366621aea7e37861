"""The sizes of a transformer that a step's price depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from treeopt.cost.attention import Attention, attention_from_config, read_attention
from treeopt.cost.config import size, size_or_none
from treeopt.cost.dtype import Dtype
from treeopt.cost.experts import Experts, experts_from_config, read_experts
from treeopt.cost.gemm import GatedFfn, Gemm, gated_ffn
from treeopt.cost.window import Window, read_window, window_from_config
from treeopt.files.documents import Document, Field, read_document

MODEL_FORMAT: Final = "treeopt.model/1"
_PRICED_LAYERS: Final = ("full_attention", "sliding_attention", "chunked_attention")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer by its sizes.

    `intermediate` is the width of the dense feed-forward block; where every layer has experts it still says how wide
    the block of an EAGLE head is. Norms and biases are left out: under 0.1 % of the parameters. `draft_vocab` is the
    reduced vocabulary that the config of an EAGLE-3 head names. `note` says what of the config has no price.
    """

    name: str
    source: str
    hidden: int
    layers: int
    vocab: int
    intermediate: int
    tied_embeddings: bool
    attention: Attention
    experts: Experts | None = None
    window: Window | None = None
    draft_vocab: int | None = None
    note: str = ""

    @classmethod
    def from_document(cls, document: Document) -> ModelShape:
        """The model of a treeopt.model/1 file (it has a `format`) or of a Hugging Face config.json.

        Raises:
            FileFormatError: a size that is missing, not a number, out of range or contradicts another, with its line.
        """
        root = document.root
        return cls.from_profile(root) if "format" in root.mapping() else cls.from_config(root)

    @classmethod
    def from_profile(cls, root: Field) -> ModelShape:
        """The model of a treeopt.model/1 file; raises as `from_document`."""
        found = root.get("format")
        if found.text() != MODEL_FORMAT:
            raise found.error(f"'{found.text()}' is not a model file", hint=f"expected format: {MODEL_FORMAT}")
        sizes = ("hidden", "layers", "vocab", "intermediate")
        root.only("format", "name", "source", *sizes, "tied_embeddings", "attention", "experts", "window")
        hidden, layers, vocab, intermediate = (root.get(key).integer(low=1) for key in sizes)
        return cls(
            name=root.get("name").text(),
            source=root.get("source").text(),
            hidden=hidden,
            layers=layers,
            vocab=vocab,
            intermediate=intermediate,
            tied_embeddings=root.get("tied_embeddings").boolean(),
            attention=read_attention(root.get("attention")),
            experts=read_experts(root.get("experts"), layers) if "experts" in root.mapping() else None,
            window=read_window(root.get("window"), layers) if "window" in root.mapping() else None,
        )

    @classmethod
    def from_config(cls, config: Field) -> ModelShape:
        """The model of a Hugging Face config.json, of its `text_config` if it has one; raises as `from_document`."""
        text = config.get("text_config") if "text_config" in config.mapping() else config
        _refuse_other_mixers(text)
        layers = size(text, "num_hidden_layers")
        return cls(
            name=_name_of(Path(config.document.name)),
            source=config.document.name,
            hidden=size(text, "hidden_size"),
            layers=layers,
            vocab=size(text, "vocab_size"),
            intermediate=size(text, "intermediate_size"),
            tied_embeddings=_is_tied(config, text),
            attention=attention_from_config(text),
            experts=experts_from_config(text, layers),
            window=window_from_config(text, layers),
            draft_vocab=size_or_none(text, "draft_vocab_size"),
            note=_unpriced(text),
        )

    @property
    def ffn(self) -> GatedFfn:
        """The dense feed-forward block."""
        return gated_ffn(self.hidden, self.intermediate)

    @property
    def lm_head(self) -> Gemm:
        """The GEMM to the logits."""
        return Gemm(self.vocab, self.hidden)

    @property
    def dense_layers(self) -> int:
        """Layers with the dense feed-forward block."""
        return self.layers if self.experts is None else self.experts.dense_layers

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers

    @property
    def parameters(self) -> int:
        """All weights."""
        attention = sum(gemm.weights for gemm in self.attention.projections(self.hidden))
        total = self.embedding_parameters + self.layers * attention + self.dense_layers * self.ffn.weights
        if self.experts:
            total += self.expert_layers * self.experts.weights(self.hidden, self.experts.count)
        return total

    @property
    def embedding_parameters(self) -> int:
        """The input embedding and the LM head; one matrix when tied."""
        return self.lm_head.weights * (1 if self.tied_embeddings else 2)

    def weight_bytes(self, dtype: str) -> int:
        """Memory of all weights; embedding and LM head stay in 16 bit beside narrower layers, as in checkpoints."""
        layers = self.parameters - self.embedding_parameters
        kind = Dtype(dtype)
        return round(layers * kind.bytes_per_value + self.embedding_parameters * kind.wide.bytes_per_value)

    def shard(self, tp: int) -> ModelShape:
        """One GPU's part under tensor parallelism: heads, feed-forward width and vocabulary share out, hidden stays.

        Raises:
            InputError: `tp` that the heads do not divide by.
        """
        return replace(
            self,
            vocab=-(-self.vocab // tp),
            intermediate=-(-self.intermediate // tp),
            attention=self.attention.shard(tp),
            experts=self.experts.shard(tp) if self.experts else None,
        )


def load_model(path: Path) -> ModelShape:
    """Read a treeopt.model/1 file or a Hugging Face config.json.

    Raises:
        InputError: it cannot be read.
        FileFormatError: as `ModelShape.from_document`.
    """
    return ModelShape.from_document(model_document(path))


def model_document(path: Path) -> Document:
    """The file of a model, for who needs its hash too.

    Raises:
        InputError: it cannot be read.
    """
    return read_document(path, what="model file or config.json")


def _name_of(path: Path) -> str:
    # A config.json is named by the folder of its checkpoint.
    return (path.resolve().parent.name or path.stem) if path.stem == "config" else path.stem


def _unpriced(config: Field) -> str:
    """What the config says that no price here takes into account, in words."""
    said = []
    if isinstance(config.mapping().get("quantization_config"), dict):
        said.append("its quantization is not priced, weights count as --dtype")
    if config.mapping().get("attention_chunk_size"):
        said.append("its attention chunks are priced as sliding windows of that length")
    return "; ".join(said)


def _is_tied(config: Field, text: Field) -> bool:
    for field in (text, config):
        tied = field.get("tie_word_embeddings", None)
        if tied.value is not None:
            return tied.boolean()
    # Gemma's configs leave it out because its default there is true; all other supported families default to false.
    return str(text.get("model_type", "").value).startswith("gemma")


def _refuse_other_mixers(text: Field) -> None:
    # Linear-attention and state-space layers would be read as attention and priced wrong without a word.
    kinds = text.get("layer_types", None)
    other = [] if kinds.value is None else [kind for kind in kinds.items() if kind.text() not in _PRICED_LAYERS]
    other += [text.get(key) for key in text.mapping() if key.startswith(("linear_", "mamba_", "ssm_"))]
    if other:
        raise other[0].error(
            "the model has layers that are not attention",
            hint="only models whose layers all use attention have a price",
        )
