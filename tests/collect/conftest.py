"""Tiny random models on disk, for tests that run where torch is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VOCABULARY = 50
WORDS = [f"w{i}" for i in range(VOCABULARY - 1)]


def save_llama(folder: Path, *, seed: int, words: list[str] = WORDS, layers: int = 2) -> Path:
    """A random Llama with a tokenizer of whole words, whose last token ends a text."""
    torch = pytest.importorskip("torch", reason="collecting needs torch")
    transformers = pytest.importorskip("transformers", reason="collecting needs transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: i for i, word in enumerate([*words, "</s>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.6,  # sharp enough that guesses differ
        bos_token_id=None,
        eos_token_id=len(vocabulary) - 1,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    # What checkpoints ask of generation must not bend the target's own distribution.
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=len(vocabulary) - 1, do_sample=True, top_p=0.5, top_k=3, temperature=0.3, repetition_penalty=1.5
    )
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_llama() -> Callable[..., Path]:
    return save_llama


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "target", seed=1, layers=3)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "small", seed=2)


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten prompts of two to five tokens."""
    records: list[dict[str, Any]] = [{"token_ids": [(7 * i + j) % 49 for j in range(2 + i % 4)]} for i in range(10)]
    path = tmp_path_factory.mktemp("prompts") / "ten.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
