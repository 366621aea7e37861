"""Small models that a server loads in seconds: a target, a drafter that is sometimes wrong, and prompts for both.

`python tests/served/toys.py FOLDER` writes them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

VOCABULARY = 40
SEED = 14


def make_toy(folder: Path, *, seed: int = SEED, sharpness: float = 6.0) -> None:
    """A Llama of 2 layers whose weights are random; `sharpness` scales its embeddings, so that texts repeat runs."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # what vLLM's CPU attention takes
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3 if "embed" in name or "lm_head" in name else sharpness / 40)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    _save_tokenizer(folder)


def make_noisy(target: Path, folder: Path, *, noise: float, seed: int = SEED) -> None:
    """The target with its weights moved by a share of their own spread: a drafter that is sometimes wrong."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype="float32")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(folder)
    _save_tokenizer(folder)


def _save_tokenizer(folder: Path) -> None:
    """Words w0, w1, ...: prompts are token ids, but loaders ask for one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def write_prompts(path: Path, *, count: int, seed: int, length: int = 12) -> None:
    """Prompts of random tokens, one JSON object a line, as `treeopt ranks collect` reads them."""
    rng = np.random.default_rng(seed)
    rows = [{"doc_id": i, "token_ids": rng.integers(0, VOCABULARY, length).tolist()} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    make_toy(out / "toy")
    make_noisy(out / "toy", out / "toy-noisy", noise=0.15)
    write_prompts(out / "plan.jsonl", count=96, seed=1)
    write_prompts(out / "run.jsonl", count=96, seed=2)
