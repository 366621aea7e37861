"""Tiny random models of several families through the adapter, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from decode.models import BUSHY

from treeopt.collect.record import DecodedText, EncodedPrompt, Recorder, record_trace
from treeopt.collect.settings import CollectSettings
from treeopt.decode.attention import kernel_attention, masked_attention
from treeopt.decode.decoder import Decoder, Decoding, same_tree
from treeopt.decode.drafters import ModelDrafter
from treeopt.decode.hf import HuggingFaceModel
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


def tiny(family: str, attention: Any = None, eager: bool = False, **changes: Any) -> HuggingFaceModel:
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.generation_config = transformers.GenerationConfig(eos_token_id=39, pad_token_id=0)
    if eager:
        model.set_attn_implementation("eager")
    return HuggingFaceModel(model.double().eval(), name=f"a tiny {family}", attention=attention)


def case_of(model: HuggingFaceModel) -> Case:
    rng = np.random.default_rng(0)
    return Case(model=model, tree=BUSHY, prefix=rng.integers(0, 40, 7), tokens=tokens_for(BUSHY, 40, rng))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_is_verified_as_it_is_decoded(family: str) -> None:
    model = tiny(family)
    checks = check_tree(case_of(model))
    assert [check.name for check in checks if not check.passed] == []
    assert max(check.worst for check in checks) < 1e-12


def test_generate_is_what_the_library_generates() -> None:
    """Against `generate` with the library's own cache; drafts come from the first layer, or from another model."""
    model = tiny("Llama")
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    expected = [model.continuation(np.array(p), max_new_tokens=15, temperature=0.0, seed=0).tolist() for p in prompts]
    decoding = Decoding(max_new_tokens=15, end_tokens=model.end_tokens)
    other = tiny("Qwen2", vocab_size=38)
    for drafter in (model.early_exit(1), model, other):
        decoder = Decoder(model, ModelDrafter(drafter, vocabulary_size=40), decoding=decoding)
        for tree in (DraftTree(()), DraftTree.chain(3), BUSHY):
            assert decoder.generate(prompts, same_tree(tree), batch=2) == expected


@pytest.mark.parametrize("kernel", [False, True])
def test_another_attention_is_taken_over(kernel: bool) -> None:
    attention = kernel_attention("torch") if kernel else masked_attention
    model = tiny("Llama", attention)
    assert [check.name for check in check_tree(case_of(model)) if not check.passed] == []


def test_an_attention_that_is_taken_over_is_used() -> None:
    def deaf(q: Any, keys: Any, values: Any, mask: Any, step: Any) -> Any:
        return torch.zeros_like(q)

    model = tiny("Llama", deaf)
    failed = {check.name for check in check_tree(case_of(model)) if not check.passed}
    assert "plain decoding, with and without cache" in failed


def test_sliding_windows_are_refused() -> None:
    some = tiny("Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    every = tiny("Mistral", sliding_window=4)  # its configuration lists no layers
    for model in (some, every):
        assert model.reference(np.arange(8)).shape == (8, 40)  # whole texts need no cache of ours
        with pytest.raises(InputError, match="sliding_attention"):
            case_of(model).run()
    case_of(tiny("Mistral", sliding_window=None)).run()


def test_models_without_positions_are_refused() -> None:
    model = tiny("Bloom", n_layer=2, n_head=4)
    with pytest.raises(InputError, match="takes no position ids"):
        case_of(model).run()


def test_a_model_that_adds_its_mask_to_the_scores() -> None:
    """Its own softmax is in float32, whatever the model is in."""
    model = tiny("Llama", eager=True)
    checks = check_tree(case_of(model))
    assert max(check.worst for check in checks) < 1e-4
    expected = model.continuation(np.array([1, 2, 3]), max_new_tokens=15, temperature=0.0, seed=0).tolist()
    decoder = Decoder(
        model, ModelDrafter(model.early_exit(1), vocabulary_size=40), decoding=Decoding(max_new_tokens=15)
    )
    assert decoder.generate([[1, 2, 3]], same_tree(BUSHY)) == [expected]


def test_the_trace_of_a_run_is_the_trace_that_collecting_records() -> None:
    model, settings = tiny("Llama"), CollectSettings(target="tiny", draft="early-exit:1", depth=3, max_new_tokens=20)
    drafter = ModelDrafter(model.early_exit(1), vocabulary_size=40)
    recorder = Recorder(settings, model, drafter)
    decoding = Decoding(max_new_tokens=20, end_tokens=model.end_tokens)
    for prompt in ([1, 2, 3], [4, 5, 6, 7, 8]):
        (written,) = Decoder(model, drafter, decoding=decoding).generate([prompt], same_tree(BUSHY))
        trace = record_trace([DecodedText(prompt, written)], drafter, rule=rule_named("greedy"), depth=3)
        rows = recorder.record(EncodedPrompt(doc_id=0, tokens=np.array(prompt)))
        assert rows.rank.tolist() == trace.rank.tolist()
        assert len(written) > 10


def test_hidden_states_are_what_comes_out_of_each_layer() -> None:
    model = tiny("Llama")
    with torch.no_grad():
        expected = model._model(torch.arange(7)[None], output_hidden_states=True).hidden_states
    found = model.hidden_states(np.arange(7), range(4))
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found[:-1], expected[:-1], strict=True):  # the library's last one is behind the norm
        torch.testing.assert_close(ours, theirs[0])
    torch.testing.assert_close(model._model.model.norm(found[-1]), model.last_hidden(np.arange(7)))
    torch.testing.assert_close(found[0], model.embed(np.arange(7)))
    torch.testing.assert_close(model.hidden_states(np.arange(7), (2, 1)), [found[2], found[1]])
    with pytest.raises(InputError, match="states 4 of a target with 3 layers"):
        model.hidden_states(np.arange(7), (4,))
    torch.testing.assert_close(model.head(model.last_hidden(np.arange(7))), model.reference(np.arange(7)))
