"""Engines that load one chain, and the two with small trees: OpenVINO GenAI and MLC-LLM."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from engines.conftest import Read
from engines.samples import BINARY, CHAIN, EAGLE, INTENT, chain

from treeopt.acceptance.prompt_lookup import PromptLookup
from treeopt.draft_family import DynamicTree, chain_length
from treeopt.engines.exporting import export
from treeopt.engines.format import Setup
from treeopt.engines.registry import find_engine
from treeopt.engines.schedule import DraftSchedule
from treeopt.errors import InputError

Refused = Callable[..., None]
CHAIN_ONLY = ("llamacpp", "transformers", "tgi", "lmdeploy", "speculators")


def content(schedule: DraftSchedule, engine: str, **setup: object) -> str:
    found = export(schedule, find_engine(engine), Setup(**setup)).written.content  # type: ignore[arg-type]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("engine", CHAIN_ONLY)
def test_one_length(engine: str, read: Read) -> None:
    assert read(content(CHAIN, engine), engine) == CHAIN
    assert read(content(CHAIN, engine)) == CHAIN  # found by its shape
    with pytest.raises(InputError, match="is no chain"):
        content(EAGLE, engine)
    with pytest.raises(InputError, match="change with the batch size"):
        content(INTENT, engine)
    with pytest.raises(InputError, match="nothing is drafted"):
        content(DraftSchedule.constant(chain(0)), engine)


def test_what_is_written() -> None:
    assert (
        content(CHAIN, "llamacpp")
        == "--spec-type draft-simple --spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0"
    )
    assert content(CHAIN, "tgi") == "--speculate 4"
    assert json.loads(content(CHAIN, "transformers")) == {
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    assert json.loads(content(CHAIN, "lmdeploy", drafter="eagle3", draft_model="D")) == {
        "method": "eagle3",
        "model": "D",
        "num_speculative_tokens": 4,
    }
    (method,) = json.loads(content(CHAIN, "speculators"))["speculators_config"]["proposal_methods"]
    assert method == {"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1}


def test_llama_cpp_is_told_the_kind_of_drafter() -> None:
    def launch(kind: str | None, method: str | None = None) -> str:
        setup = Setup(drafter=kind, method=method, model="M", draft_model="D")
        return export(CHAIN, find_engine("llamacpp"), setup).written.launch

    assert launch("mtp").startswith("llama-server -m M --spec-type draft-mtp --spec-draft-n-max 4")
    assert launch("eagle3").startswith("llama-server -m M -md D --spec-type draft-eagle3 ")
    assert launch("model:llama-3.2-1b").startswith("llama-server -m M -md D --spec-type draft-simple ")
    # The user's word counts, whatever the plan was made for.
    assert launch("mtp", "draft-simple").startswith("llama-server -m M -md D --spec-type draft-simple ")
    assert launch("model", "draft-mtp").startswith("llama-server -m M --spec-type draft-mtp ")


def test_transformers_takes_it() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GenerationConfig(**json.loads(content(CHAIN, "transformers")))
    config.validate()
    assert config.num_assistant_tokens == 4


@pytest.mark.parametrize(
    ("text", "engine", "length"),
    [
        ("llama-server -m M -md D --spec-draft-n-max 8 --spec-draft-n-min 1", None, 8),
        ("llama-server -m M --spec-type ngram-simple --spec-ngram-simple-size-m 6", None, 6),
        ('{"prompt_lookup_num_tokens": 7}', None, 7),
        ("text-generation-launcher --model-id M --speculate 3", None, 3),
        ('{"num_assistant_tokens": 20, "num_assistant_tokens_schedule": "heuristic"}', None, 20),
        ('{"num_assistant_tokens": 5}', "transformers", 5),
        ('{"num_assistant_tokens": 5, "tree_depth": 0}', "openvino", 5),
        ('{"spec_draft_length": 4}', "mlc", 4),
    ],
)
def test_as_users_write_it(read: Read, text: str, engine: str | None, length: int) -> None:
    only = read(text, engine).only
    assert only is not None
    assert chain_length(only) == length


def test_openvino_trees(read: Read) -> None:
    assert json.loads(content(DraftSchedule.constant(DynamicTree(3, 2, 11)), "openvino")) == {
        "tree_depth": 3,
        "branching_factor": 2,
        "num_assistant_tokens": 10,
        "do_sample": False,
    }
    assert json.loads(content(CHAIN, "openvino")) == {"num_assistant_tokens": 4}
    assert read('{"tree_depth": 3, "num_assistant_tokens": 3}', "openvino").only == chain(3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"tree_depth": 2, "branching_factor": 2, "num_assistant_tokens": 1000}', ["3 to 7"]),  # not checked by it
        ('{"tree_depth": 3, "branching_factor": 2, "num_assistant_tokens": 2}', ["4 to 11"]),
        ('{"tree_depth": 3, "branching_factor": 0, "num_assistant_tokens": 3}', ["out of range"]),
        ('{"tree_depth": 3, "branching_factor": 2, "num_assistant_tokens": 5, "do_sample": true}', ["greedy"]),
        ('{"num_assistant_tokens": 0}', ["out of range"]),
    ],
)
def test_what_openvino_refuses_or_fails_on(refused: Refused, text: str, words: list[str]) -> None:
    refused(text, "openvino", *words)


def test_mlc_trees(read: Read) -> None:
    assert json.loads(content(BINARY, "mlc")) == {
        "speculative_mode": "eagle",
        "spec_draft_length": 2,
        "spec_tree_width": 2,
    }
    assert read(content(BINARY, "mlc")) == BINARY
    with pytest.raises(InputError, match="different numbers of children"):
        content(EAGLE, "mlc")
    automatic = read('{"spec_draft_length": 0}')
    assert [chain_length(automatic.at(b)) for b in (1, 9, 10, 19, 20, 29, 30, 500)] == [4, 4, 3, 3, 2, 2, 0, 0]


def test_mlc_trees_that_are_too_large(refused: Refused) -> None:
    refused('{"spec_draft_length": 900000, "spec_tree_width": 9}', "mlc", "more than 4096 tokens")


@pytest.mark.parametrize(("length", "longest", "run"), [(4, 3, 3), (2, 3, 2), (1, 5, 1)])
def test_llama_cpp_never_looks_up_more_than_it_drafts(read: Read, length: int, longest: int, run: int) -> None:
    """Its code drafts nothing where fewer tokens than the run follow the match."""
    lookup = PromptLookup(rule="treeopt", shortest=1, longest=longest)
    flags = content(DraftSchedule.constant(chain(length)), "llamacpp", drafter="ngram", lookup=lookup)
    assert flags == (f"--spec-type ngram-simple --spec-ngram-simple-size-n {run} --spec-ngram-simple-size-m {length}")
    assert read(flags, "llamacpp").only == chain(length)
