"""The recorder in a runner of the shape that vLLM's V2 has; its own code is run by tests/served/test_v2_runner.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from treeopt.record import vllm_v2

torch = pytest.importorskip("torch", reason="the engine's tensors are torch's")
LOGITS = torch.tensor([[0.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 0.0]])  # two requests, four tokens


def _lines(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def v2_runner_class() -> Any:
    """What of vLLM 0.32's V2 runner is wrapped."""

    class Speculator:
        use_local_argmax_reduction = True
        seen = True

        def compute_draft_logits(self, hidden: Any, step: int) -> Any:
            return LOGITS

        def propose(self, batch: Any, dummy_run: bool = False) -> Any:
            found = [(self.compute_draft_logits(None, i) if self.seen else LOGITS).argmax(-1) for i in range(2)]
            return torch.stack(found, dim=1)

    class Runner:
        def __init__(self) -> None:
            self.speculator = Speculator()
            self.req_states = SimpleNamespace(
                draft_tokens=torch.tensor([[1, 1], [2, 2]]),
                prompt_len=SimpleNamespace(np=np.array([4, 4])),
                req_id_to_index={"a": 0, "b": 1},
            )
            temperature = SimpleNamespace(np=np.zeros(2))
            self.sampler = SimpleNamespace(sampling_states=SimpleNamespace(temperature=temperature))

        def sample(self, hidden: Any, batch: Any, grammar: Any) -> Any:
            tokens, valid = torch.tensor([[1, 2, 9], [3, 9, 9]]), torch.tensor([2, 1])
            return SimpleNamespace(sampled_token_ids=tokens), valid, 3 - valid

    return Runner


def v2_batch(*, grammar: bool = False) -> Any:
    return SimpleNamespace(
        req_ids=["a", "b"],
        idx_mapping=torch.tensor([0, 1]),
        idx_mapping_np=np.array([0, 1]),
        num_draft_tokens_per_req=np.array([2, 2]),
        has_structured_output_reqs=grammar,
    )


def v2_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, seen: bool = True, grammar: bool = False) -> Any:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    engine = v2_runner_class()
    vllm_v2.attach(engine, tmp_path)
    runner = engine()
    runner.speculator.seen = seen
    runner.speculator.propose(v2_batch(), dummy_run=True)  # a warm-up, before there is a recorder
    for _ in range(3):
        runner.sample(None, v2_batch(grammar=grammar), None)
        runner.speculator.propose(v2_batch())
    recorder = engine._treeopt_recorder
    recorder._writer.close()
    return recorder, [json.loads(line) for line in _lines(tmp_path)][1:]


def test_the_v2_runner_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, rows = v2_served(tmp_path, monkeypatch)
    assert not recorder.broken
    assert [row["ranks_to_miss"] for row in rows] == [[0, 1], [3]] * 2  # the first step has no draft before it
    assert [row["context"] for row in rows] == [6, 5, 8, 6]


def test_steps_with_a_grammar_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, rows = v2_served(tmp_path, monkeypatch, grammar=True)
    assert (recorder.broken, rows) == (False, [])


def test_a_drafter_inside_a_graph_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    recorder, rows = v2_served(tmp_path, monkeypatch, seen=False)
    assert (recorder.broken, rows) == (True, [])
    assert caplog.text.count("PIECEWISE") == 1
