"""Chains for Transformers, speculators, LMDeploy and llama.cpp, held against what those packages publish.

The first ones' own code is run; of llama.cpp, which cannot be built here, its table of arguments is read.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import json
import re
import shlex
from typing import Any

import pytest
from conformance.test_heads import SPECULATORS, importable
from conformance.wheels import installed, needs_conformance, sdist_texts, text, wheel
from engines.samples import chain

from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.llamacpp import LLAMACPP
from treeopt.engines.lmdeploy import LMDEPLOY
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule

pytestmark = needs_conformance
LENGTHS = (1, 2, 5, 16)


def written(engine: str, length: int, setup: Setup) -> Any:
    return export(DraftSchedule.constant(chain(length)), find_engine(engine), setup).written


@pytest.mark.filterwarnings("ignore")  # of what it imports
@pytest.mark.parametrize("length", LENGTHS)
def test_speculators_takes_the_configuration(length: int) -> None:
    pytest.importorskip("transformers")
    exported = json.loads(str(written("speculators", length, Setup()).content))["speculators_config"]
    with importable(installed(*SPECULATORS)):
        config = importlib.import_module("speculators.config")
        importlib.import_module("speculators.proposals.greedy")  # registers itself
        verifier = config.VerifierConfig(name_or_path="target", architectures=["LlamaForCausalLM"])
        found = config.SpeculatorsConfig.model_validate({"algorithm": "eagle3", "verifier": verifier, **exported})
    (method,) = found.proposal_methods
    assert (method.proposal_type, method.speculative_tokens) == ("greedy", length)


def lmdeploy() -> dict[str, Any]:
    """Its configuration's class, and the function that names its arguments, out of modules that need a GPU."""
    archive, found = wheel("lmdeploy", "0.18.0"), dict[str, Any]({"dataclass": dataclasses.dataclass})
    for member, name in (("messages", "SpeculativeConfig"), ("cli/utils", "add_spec_group")):
        tree = ast.parse(text(archive, f"lmdeploy/{member}.py"))
        node = next(n for n in ast.walk(tree) if getattr(n, "name", None) == name)
        assert isinstance(node, ast.ClassDef | ast.FunctionDef)
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
        exec(compile(ast.Module([node], []), member, "exec"), found)
    return found


@pytest.mark.parametrize("length", LENGTHS)
def test_lmdeploy_takes_every_drafter_that_is_offered(length: int) -> None:
    theirs, parser = lmdeploy(), argparse.ArgumentParser()
    theirs["add_spec_group"](parser)
    for kind in LMDEPLOY.formats[0].drafters.words:
        config = json.loads(str(written("lmdeploy", length, Setup(drafter=kind)).content))
        found = theirs["SpeculativeConfig"](**config)
        assert found.num_speculative_tokens == length
        words = ["--speculative-algorithm", config["method"], "--speculative-num-draft-tokens", str(length)]
        assert parser.parse_args(words).speculative_algorithm == config["method"]


def test_llamacpp_has_every_argument() -> None:
    table, kinds = sdist_texts(
        *("llama-cpp-python", "0.3.36", "vendor/llama.cpp/common/arg.cpp", "vendor/llama.cpp/common/speculative.cpp")
    )
    options = re.findall(r"add_opt\(common_arg\(\s*\{([^}]*)\}(.*?)(?=add_opt\()", table, re.DOTALL)
    alive = {name for names, body in options if "arg_removed" not in body for name in re.findall(r'"(-[^"]+)"', names)}
    assert "--draft-max" not in alive
    named = set(re.findall(r'\{\s*"([a-z0-9-]+)",\s*COMMON_SPECULATIVE_TYPE', kinds))
    for kind, word in LLAMACPP.formats[0].drafters.words.items():
        for setup in (Setup(drafter=kind), Setup(drafter=kind, survival=(0.5, 0.2))):
            flags = [w for w in shlex.split(written("llamacpp", 2, setup).launch)[1:] if re.match("--?[a-z]", w)]
            assert set(flags) <= alive
        assert word.text in named


@pytest.mark.parametrize(("kind", "assisted"), [("model", True), ("ngram", False)])
def test_transformers_drafts_as_many(monkeypatch: pytest.MonkeyPatch, kind: str, assisted: bool) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    generation = importlib.import_module("transformers.generation.candidate_generator")
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model, assistant = (
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_hidden_layers=n)) for n in (2, 1)
    )
    exported = json.loads(str(written("transformers", 3, Setup(drafter=kind)).content))
    generator = generation.AssistedCandidateGenerator if assisted else generation.PromptLookupCandidateGenerator
    drafted, propose = [], generator.get_candidates

    def recorded(self: Any, input_ids: Any, *rest: Any, **more: Any) -> Any:
        found = propose(self, input_ids, *rest, **more)
        drafted.append(found[0].shape[1] - input_ids.shape[1])
        return found

    monkeypatch.setattr(generator, "get_candidates", recorded)
    given: dict[str, Any] = {"assistant_model": assistant} if assisted else exported
    if assisted:
        assistant.generation_config.update(**exported)
    model.generate(torch.tensor([[3, 1, 4, 1, 5, 3, 1]]), max_new_tokens=24, do_sample=False, pad_token_id=0, **given)
    assert max(drafted) == 3
    if assisted:
        assert set(drafted[:-4]) == {3}  # every step, but where the text ends
