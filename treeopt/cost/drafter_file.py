"""`--drafter`: the kinds of drafters by name, and a drafter by its own config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from treeopt.cost.block_drafters import (
    BlockHead,
    BlockHeads,
    Convolution,
    ParallelEagle,
    Pard,
    Selector,
    check_masks,
)
from treeopt.cost.drafter import Drafter, DraftModel, Eagle, Eagle3, Medusa, Mtp, Ngram, Suffix
from treeopt.cost.model import ModelShape
from treeopt.cost.model_config import MAX_SIZE, model_from_config
from treeopt.drafter_kind import block_value, drafter_kind
from treeopt.errors import InputError, UnknownNameError
from treeopt.files.documents import Document, Field, read_document

_NAMED: Final[tuple[Drafter, ...]] = (
    *(Eagle(), Eagle3(), Medusa(), Mtp(), Ngram(), Suffix(), ParallelEagle()),
    *(BlockHeads(kind=kind) for kind in ("dflash", "jetspec", "dflash2", "dspark")),
)
_WITH_FILE: Final = (
    *("eagle", "eagle3", "medusa", "mtp", "model", "pard"),
    *("peagle", "dflash", "jetspec", "dflash2", "dspark"),
)
_WHAT: Final = "drafter's config.json"
# What the engines and trainers call the width of a block.
_BLOCK: Final = ("block_size", "dspark_block_size")


def parse_drafter(text: str, *, load_model: Callable[[str], ModelShape]) -> Drafter:
    """The drafter that a kind, `KIND:FILE`, `model:NAME`, or the folder or config.json of a checkpoint means.

    Args:
        text: what the user wrote.
        load_model: turns the NAME of `model:NAME` or `pard:NAME` into a model.

    Raises:
        UnknownNameError: any other text; the hint lists the kinds.
        InputError: a kind without the name it needs, a file that is no drafter with a price, or whatever
            `load_model` raises.
    """
    kind, _, name = named_drafter(text).partition(":")
    if kind in _WITH_FILE and ":" in text and not name:
        raise InputError(f"the drafter '{text}' names no model or file", hint=_example(kind))
    if kind in ("model", "pard") and name:
        model = load_model(name)
        return DraftModel(model=model) if kind == "model" else Pard(model=model, masks=_masks_of_pard(name))
    if kind in _WITH_FILE and name:
        return _of_file(kind, name, load_model)
    for drafter in _NAMED:
        if drafter.kind == text:
            return drafter
    known = (*(d.kind for d in _NAMED), "FOLDER", "KIND:CONFIG_JSON", "model:NAME", "pard:NAME")
    raise UnknownNameError("drafter", text, known)


def named_drafter(text: str) -> str:
    """`KIND:FILE` of the folder or the config.json of a drafter; other text as it is.

    Raises:
        InputError: no config.json is there, or one of a drafter that has no price: with the reason.
    """
    path = Path(text)
    looks_like_a_file = path.suffix == ".json" or "/" in text or path.is_dir()
    if not looks_like_a_file or text.partition(":")[0] in _WITH_FILE:
        return text
    file = path / "config.json" if path.is_dir() else path
    found = drafter_kind(_config(file).mapping())
    if found.name not in _WITH_FILE:
        why = found.unpriced or "no such drafter is known"
        raise InputError(
            f"{file}: a drafter of the kind {found.name} ({found.by}) has no price: {why}",
            hint="give measured step times with --cost FILE: they need no price of the drafter",
        )
    return f"{found.name}:{path}"


def _of_file(kind: str, name: str, load_model: Callable[[str], ModelShape]) -> Drafter:
    """A head by its config.json, or, for `eagle3:NAME`, by any model file that has its sizes."""
    if kind in ("eagle", "mtp"):
        return Eagle() if kind == "eagle" else Mtp()
    file = _file_of(name)
    if kind == "eagle3":
        speculators = file.is_file() and "transformer_layer_config" in _config(file).mapping()
        return Eagle3(head=_shape(_config(file)) if speculators else load_model(name))
    root = _config(file)
    if kind == "medusa":
        return Medusa(heads=root.get("medusa_num_heads").integer(low=1, high=64))
    head = _block_head(kind, root)
    return ParallelEagle(head=head) if kind == "peagle" else BlockHeads(kind=kind, head=head)


def _block_head(kind: str, root: Field) -> BlockHead:
    """The block of a config.json.

    Raises:
        FileFormatError: a size that is missing or out of range, with its line.
        InputError: a block that guesses nothing.
    """
    config, model = root.mapping(), _shape(root)
    block = _number(root, *_BLOCK)
    from_anchor = bool(block_value(config, "sample_from_anchor")) or (kind == "dspark" and not _bonus(config))
    usual = (ParallelEagle() if kind == "peagle" else BlockHeads(kind=kind)).drafts
    drafts = usual if block is None else block - (not from_anchor)
    if kind == "peagle":
        drafts = _speculative_tokens(root) or usual
    check_masks(drafts, block)
    taps, rank = _number(root, "conv_kernel_size"), _number(root, "selector_rank")
    return BlockHead(
        model=model,
        drafts=drafts,
        states=_states(config, model),
        from_anchor=from_anchor,
        markov_rank=(_number(root, "markov_rank") or 0) if kind == "dspark" else 0,
        # DeepSeek-V4's three layers lie in the target's checkpoint (mtp.*), with its experts and hyper-connections.
        in_checkpoint="dspark_block_size" in config or "hc_mult" in config,
        convolution=Convolution(taps, _number(root, "conv_group_size") or 1) if taps and kind == "dflash2" else None,
        selector=Selector(rank, _number(root, "selector_top_k") or 1) if rank and kind == "dflash2" else None,
    )


def _shape(root: Field) -> ModelShape:
    """The sizes of a head's layers; trainers' format keeps them in a part of its own, the vocabulary beside it."""
    speculators = "transformer_layer_config" in root.mapping()
    model = model_from_config(root.get("transformer_layer_config") if speculators else root)
    if "dspark_block_size" in root.mapping():  # a target's own config: of it the drafter has one layer per fused state
        layers = block_value(root.mapping(), "dspark_target_layer_ids")
        model = replace(model, layers=len(layers) if isinstance(layers, list) and layers else 1, window=None)
        model = replace(model, experts=model.experts and replace(model.experts, dense_layers=0), linear=None)
    vocab = _number(root, "draft_vocab_size")
    rough = []
    if "hc_mult" in root.mapping():
        rough.append("its hyper-connections have no price")
    if "linear_attn_config" in root.mapping():
        rough.append("its linear-attention layers are priced as attention")
    if "o_lora_rank" in root.mapping():
        rough.append("its low-rank projections are priced as full ones")
    if str(block_value(root.mapping(), "markov_head_type") or "vanilla") != "vanilla":
        rough.append("its Markov head is priced as a vanilla one")
    full = vocab == model.vocab and "draft_vocab_size" in root.mapping()
    note = "; ".join(filter(None, (model.note, *(f"drafter {model.name}: {text}" for text in rough))))
    return replace(model, draft_vocab=vocab if vocab or full else None, note=note)


def _states(config: dict[str, Any], model: ModelShape) -> int | None:
    """Values of the target's states that are fused: so many layers, `hc_mult` streams each where it has those."""
    listed = block_value(config, "target_layer_ids", "aux_hidden_state_layer_ids", "dspark_target_layer_ids")
    layers = len(listed) if isinstance(listed, list) and listed else model.layers
    streams = config.get("hc_mult") or 1
    wide = config.get("target_hidden_size") or model.hidden
    sizes = isinstance(streams, int) and isinstance(wide, int)
    return layers * streams * wide if sizes else None


def _bonus(config: dict[str, Any]) -> bool:
    """Whether a DSpark block has the root as a row that guesses nothing."""
    said = block_value(config, "dspark_bonus_anchor", "bonus_anchor")
    return bool(said) or block_value(config, "sample_from_anchor") is False


def _speculative_tokens(root: Field) -> int | None:
    """K of the first method that a config in the trainers' format proposes."""
    config = root.mapping().get("speculators_config")
    if not isinstance(config, dict) or not config.get("proposal_methods"):
        return None
    methods = root.get("speculators_config").get("proposal_methods")
    found = next(methods.items()).get("speculative_tokens", None)
    return None if found.value is None else found.integer(low=1, high=1024)


def _number(root: Field, *keys: str) -> int | None:
    """The whole number under the first of `keys`, in `dflash_config` or beside it."""
    inner = root.mapping().get("dflash_config")
    places = (root.get("dflash_config"), root) if isinstance(inner, dict) else (root,)
    fields = (place.get(key, None) for key in keys for place in places)
    return next((field.integer(low=1, high=MAX_SIZE) for field in fields if field.value is not None), None)


def _masks_of_pard(name: str) -> int | None:
    """K that a PARD config names, in the trainers' format alone."""
    file = _file_of(name)
    return _speculative_tokens(_config(file)) if file.suffix == ".json" and file.is_file() else None


def _file_of(name: str) -> Path:
    path = Path(name)
    return path / "config.json" if path.is_dir() else path


def _config(file: Path) -> Field:
    document: Document = read_document(file, what=_WHAT)
    return document.root


def _example(kind: str) -> str:
    if kind in ("model", "pard"):
        return f"write {kind}:NAME, for example {kind}:qwen3-0.6b"
    return f"write {kind}:CONFIG_JSON, or {kind} alone"
