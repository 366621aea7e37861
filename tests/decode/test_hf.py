"""Tiny random models of several families through the adapter, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decode.models import BUSHY

from treeopt.collect.drafters import ModelDrafter as CollectingDrafter
from treeopt.collect.models import CausalModel
from treeopt.collect.record import Document, Recorder
from treeopt.collect.settings import Settings
from treeopt.decode.attention import kernel_attention, masked_attention
from treeopt.decode.decoder import Decoder, Decoding, same_tree
from treeopt.decode.drafters import ModelDrafter
from treeopt.decode.hf import HuggingFaceModel
from treeopt.decode.record import Text, record_trace
from treeopt.decode.rules import rule_named
from treeopt.errors import InputError
from treeopt.tree import DraftTree
from treeopt.verify.case import Case
from treeopt.verify.checks import check_tree, tokens_for

torch = pytest.importorskip("torch", reason="the adapter needs torch")
transformers = pytest.importorskip("transformers", reason="the adapter needs transformers")

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.6,
    "eos_token_id": 39,
    "pad_token_id": None,
    "bos_token_id": None,
}
FAMILIES = ("Llama", "Qwen2", "Qwen3")


def tiny(family: str, **changes: Any) -> CausalModel:
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.generation_config = transformers.GenerationConfig(eos_token_id=39, pad_token_id=0)
    return CausalModel(model.double().eval(), name=f"a tiny {family}")


def case_of(model: HuggingFaceModel) -> Case:
    rng = np.random.default_rng(0)
    return Case(model=model, tree=BUSHY, prefix=rng.integers(0, 40, 7), tokens=tokens_for(BUSHY, 40, rng))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_is_verified_as_it_is_decoded(family: str) -> None:
    model = HuggingFaceModel(tiny(family))
    checks = check_tree(case_of(model))
    assert [check.name for check in checks if not check.passed] == []
    assert max(check.worst for check in checks) < 1e-12


def test_generate_is_what_the_library_generates() -> None:
    """Against `generate` with the library's own cache; drafts come from the first layer, or from another model."""
    causal = tiny("Llama")
    model = HuggingFaceModel(causal)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    expected = [causal.continuation(np.array(p), max_new_tokens=15, temperature=0.0, seed=0).tolist() for p in prompts]
    decoding = Decoding(max_new_tokens=15, end_tokens=model.end_tokens)
    other = HuggingFaceModel(tiny("Qwen2", vocab_size=38))
    for drafter in (model.early_exit(1), model, other):
        decoder = Decoder(model, ModelDrafter(drafter, vocabulary_size=40), decoding=decoding)
        for tree in (DraftTree(()), DraftTree.chain(3), BUSHY):
            assert decoder.generate(prompts, same_tree(tree), batch=2) == expected


@pytest.mark.parametrize("kernel", [False, True])
def test_another_attention_is_taken_over(kernel: bool) -> None:
    attention = kernel_attention("torch") if kernel else masked_attention
    model = HuggingFaceModel(tiny("Llama"), attention=attention)
    assert [check.name for check in check_tree(case_of(model)) if not check.passed] == []


def test_an_attention_that_is_taken_over_is_used() -> None:
    def deaf(q: Any, keys: Any, values: Any, mask: Any, step: Any) -> Any:
        return torch.zeros_like(q)

    model = HuggingFaceModel(tiny("Llama"), attention=deaf)
    failed = {check.name for check in check_tree(case_of(model)) if not check.passed}
    assert "plain decoding, with and without cache" in failed


def test_sliding_windows_are_refused() -> None:
    some = tiny("Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    every = tiny("Mistral", sliding_window=4)  # its configuration lists no layers
    for model in (some, every):
        with pytest.raises(InputError, match="sliding_attention"):
            HuggingFaceModel(model)
    HuggingFaceModel(tiny("Mistral", sliding_window=None))


def test_models_without_positions_are_refused() -> None:
    model = tiny("Bloom", n_layer=2, n_head=4)
    with pytest.raises(InputError, match="takes no position ids"):
        HuggingFaceModel(model)


def test_a_model_that_adds_its_mask_to_the_scores() -> None:
    """Its own softmax is in float32, whatever the model is in."""
    causal = tiny("Llama")
    causal._model.set_attn_implementation("eager")
    model = HuggingFaceModel(causal)
    checks = check_tree(case_of(model))
    assert max(check.worst for check in checks) < 1e-4
    expected = causal.continuation(np.array([1, 2, 3]), max_new_tokens=15, temperature=0.0, seed=0).tolist()
    decoder = Decoder(
        model, ModelDrafter(model.early_exit(1), vocabulary_size=40), decoding=Decoding(max_new_tokens=15)
    )
    assert decoder.generate([[1, 2, 3]], same_tree(BUSHY)) == [expected]


def test_the_trace_of_a_run_is_the_trace_that_collecting_records() -> None:
    causal = tiny("Llama")
    model, settings = HuggingFaceModel(causal), Settings(target="tiny", draft="early-exit:1", depth=3)
    first = ModelDrafter(model.early_exit(1), vocabulary_size=40)
    recorder = Recorder(
        replace(settings, max_new_tokens=20),
        causal,
        CollectingDrafter(causal.truncated(1), vocabulary_size=40, temperature=0.0),
    )
    decoding = Decoding(max_new_tokens=20, end_tokens=model.end_tokens)
    for prompt in ([1, 2, 3], [4, 5, 6, 7, 8]):
        (written,) = Decoder(model, first, decoding=decoding).generate([prompt], same_tree(BUSHY))
        trace = record_trace([Text(prompt, written)], first, rule=rule_named("greedy"), depth=3, ranks=40)
        rows = recorder.record(Document(doc_id=0, tokens=np.array(prompt)))
        assert np.where(rows.rank >= 32, -1, rows.rank).tolist() == np.where(trace.rank >= 32, -1, trace.rank).tolist()
        assert len(written) > 10
