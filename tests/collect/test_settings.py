from __future__ import annotations

from typing import Any

import pytest

from treeopt.collect.job import PromptShard
from treeopt.collect.settings import CollectSettings, DrafterSpec, parse_draft
from treeopt.errors import InputError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ("ngram", DrafterSpec(kind="ngram", argument="3")),
        ("ngram:5", DrafterSpec(kind="ngram", argument="5")),
        ("ngram:vllm:1-4", DrafterSpec(kind="ngram", argument="vllm:1-4")),
        ("ngram:vllm", DrafterSpec(kind="ngram", argument="vllm:1-3")),
        ("early-exit:012", DrafterSpec(kind="early-exit", argument="12")),
        ("medusa:./heads", DrafterSpec(kind="medusa", argument="./heads")),
        ("mtp", DrafterSpec(kind="mtp", argument="")),
        ("eagle3:./head", DrafterSpec(kind="eagle3", argument="./head")),
        ("owner/name", DrafterSpec(kind="model", argument="owner/name")),
        ("draft.gguf", DrafterSpec(kind="model", argument="draft.gguf")),
    ],
)
def test_drafters_are_parsed(text: str, draft: DrafterSpec) -> None:
    assert parse_draft(text) == draft


@pytest.mark.parametrize(("text", "near"), [("early_exit:12", "early-exit"), ("n-gram", "ngram"), ("Medusa", "medusa")])
def test_an_unknown_drafter_gets_the_nearest(text: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_draft(text)
    assert caught.value.hint.startswith(f"did you mean {near}? ")


@pytest.mark.parametrize("text", ["early-exit", "early-exit:x", "early-exit:0", "medusa", "medusa:"])
def test_a_drafter_without_its_argument_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="says too little"):
        parse_draft(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": 0},
        {"ranks": 255},
        {"max_new_tokens": 1},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"seed": -1},
        {"dtype": "fp4"},
        {"rule": "typical"},
        {"rule": "recursive-rejection"},
        {"rule": "greedy", "temperature": 0.5},
        {"draft": "eagle"},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        CollectSettings(**{"target": "t/t", "draft": "ngram", **wrong})
    assert caught.value.hint


def test_the_rule_follows_the_temperature() -> None:
    assert CollectSettings(target="t/t", draft="ngram").acceptance_rule == "greedy"
    assert CollectSettings(target="t/t", draft="ngram", temperature=0.7).acceptance_rule == "target-sample"


def test_conditions_hold_names_and_no_paths() -> None:
    settings = CollectSettings(target="/models/big.gguf", draft="medusa:owner/heads", temperature=0.5)
    assert settings.conditions(dataset="chat").known() == {
        "target": "big",
        "drafter": "medusa:owner/heads",
        "temperature": 0.5,
        "rule": "target-sample",
        "dataset": "chat",
        "sampling": "all-positions",
    }


def test_shards_are_parsed() -> None:
    assert PromptShard.parse("2/4") == PromptShard(index=2, count=4)
    for text in ("4/4", "1", "a/b", "1/0", "-1/2", "1/2/3"):
        with pytest.raises(InputError, match="shard"):
            PromptShard.parse(text)
