"""Which kind of drafter a checkpoint's config.json describes, by the keys that engines tell them apart by.

Source: vLLM 0.33, `config/speculative.py` and `transformers_utils/configs/speculators/algos.py`; SpecForge and
speculators for the names that trainers write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

KINDS: Final = (
    *("eagle", "eagle3", "mtp", "medusa", "dflash", "jetspec", "dflash2", "dspark", "peagle", "pard", "model"),
)
"""All kinds that can be recognised; `model` is a language model of its own."""

# By what the name of the architecture contains; the first that fits.
_BY_ARCHITECTURE: Final = (
    ("dflash2", "dflash2"),
    ("dspark", "dspark"),
    ("domino", "domino"),
    ("lilicorr", "lilicorr"),
    ("xpress", "xpress"),
    ("dflare", "dflare"),
    ("dflash", "dflash"),
    ("peagle", "peagle"),
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("medusa", "medusa"),
    ("mtp", "mtp"),
    ("nextn", "mtp"),
    ("gemma4assistant", "gemma4-assistant"),
)
_OTHER: Final = "draftmodel"
_SPECULATORS: Final = ("eagle", "eagle3", "peagle", "dflash", "dflash2", "dspark", "mtp")
_BY_KEY: Final = (
    ("selector_rank", "dflash2"),
    ("dspark_block_size", "dspark"),
    ("markov_rank", "dspark"),
    ("gru_hidden_dim", "domino"),
    ("dflash_config", "dflash"),
    ("medusa_num_heads", "medusa"),
    ("pard_token", "pard"),
    ("draft_vocab_size", "eagle3"),
    ("num_nextn_predict_layers", "mtp"),
    ("mtp_num_hidden_layers", "mtp"),
    ("num_mtp_modules", "mtp"),
)
_WHY_NOT: Final = {
    "domino": "its GRU runs over the drafted tokens one by one, which no price here covers",
    "lilicorr": "its correction of candidates is a loop that no price here covers",
    "xpress": "it refines a block in several Jacobi passes, which no price here covers",
    "dflare": "it fuses the target's states anew in every layer, which no price here covers",
    "gemma4-assistant": "its layers read the target's KV cache, which no price here covers",
}


class DrafterKind(NamedTuple):
    """A kind of drafter, and what told it: a key or a name in the config.json."""

    name: str
    by: str

    @property
    def unpriced(self) -> str | None:
        """Why a drafter of this kind has no price; None where it has."""
        return _WHY_NOT.get(self.name)


def drafter_kind(config: Mapping[str, Any]) -> DrafterKind:
    """The kind that a config.json is of; `model` where nothing says that it is the head of another model.

    The name that a trainer gives (`speculators_model_type`) comes first, then the name of the architecture, then keys.
    """
    named = config.get("speculators_model_type")
    if named is not None:
        by = f"speculators_model_type {named}"
        return DrafterKind(_causal(config, str(named)) if named in _SPECULATORS else str(named), by)
    for architecture in config.get("architectures") or ():
        plain = str(architecture).lower().replace("_", "")
        for part, kind in _BY_ARCHITECTURE:
            if part in plain:
                return DrafterKind(_refined(config, kind), f"architecture {architecture}")
        if plain.endswith(_OTHER):  # newer than this: its keys would make it what it is not
            return DrafterKind(plain.removesuffix(_OTHER), f"architecture {architecture}")
    for key, kind in _BY_KEY:
        if _has(config, key):
            return DrafterKind(_refined(config, kind), key)
    return DrafterKind("model", "no key of a drafter")


def block_value(config: Mapping[str, Any], *keys: str) -> Any:
    """The first of `keys` that `dflash_config` or the config itself has; None where neither does."""
    inner = config.get("dflash_config")
    places = (inner if isinstance(inner, Mapping) else {}, config)
    return next((place[key] for key in keys for place in places if place.get(key) is not None), None)


def _has(config: Mapping[str, Any], key: str) -> bool:
    """Whether a key is there and not 0: a target without MTP layers may say so."""
    return bool(block_value(config, key))


def _refined(config: Mapping[str, Any], kind: str) -> str:
    """EAGLE-3 heads that guess in parallel by their masks, DFlash-like architectures by what their projector is."""
    if kind == "eagle3" and any(_has(config, key) for key in ("ptd_token_id", "pard_token")):
        return "peagle"
    if kind != "dflash":
        return kind
    projector = str(block_value(config, "projector_type") or "")
    for name in ("domino", "dspark", "lilicorr", "xpress"):
        if projector.startswith(name):
            return name
    return _causal(config, kind)


def _causal(config: Mapping[str, Any], kind: str) -> str:
    return "jetspec" if kind == "dflash" and block_value(config, "causal_head") else kind
