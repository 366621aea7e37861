"""The recorder without an engine: matching, files, and a runner of the shape that vLLM's has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from treeopt.acceptance.importers import read_evidence
from treeopt.acceptance.table import DepthRanks
from treeopt.errors import FileFormatError
from treeopt.record import vllm as plugin
from treeopt.record.drafts import Drafted, DraftLog, Verified
from treeopt.record.shards import ShardWriter

GUESSES = [[5, 6, 7], [8, 9, 1], [2, 3, 4]]
CHANCES = [[0.5, 0.25, 0.125]] * 3


def rows_of(*emitted: int, drafted: int = 3, known: Drafted | None = None) -> list[dict[str, Any]]:
    """A draft of 5, 8, 2 against what came out."""
    log = DraftLog()
    log.drafted(["a"], [known or Drafted([5, 8, 2], GUESSES, CHANCES)])
    step = [Verified("a", [5, 8, 2][:drafted], list(emitted), 10, 0.0)]
    return [json.loads(row) for row in log.verified(step)]


def test_ranks_end_with_the_first_miss() -> None:
    (right,) = rows_of(5, 8, 2, 40)
    assert (right["ranks_to_miss"], right["accepted"], right["drafted"]) == ([0, 0, 0], 3, 3)
    (second,) = rows_of(5, 9)
    assert (second["ranks_to_miss"], second["accepted"]) == ([0, 1], 1)
    assert second["probability"] == [0.5, 0.25]
    (nowhere,) = rows_of(40)
    assert (nowhere["ranks_to_miss"], nowhere["accepted"], nowhere["probability"]) == ([-1], 0, [None])
    assert (nowhere["running"], nowhere["context"], nowhere["temperature"]) == (1, 10, 0.0)


def test_a_drawn_draft_has_the_rank_of_its_own_token() -> None:
    (row,) = rows_of(5, 8, 4, known=Drafted([5, 8, 2], [[6, 5, 7], *GUESSES[1:]], CHANCES))
    assert (row["ranks_to_miss"], row["accepted"]) == ([1, 0, 2], 2)


def test_what_was_not_drafted_so_is_left_out() -> None:
    assert rows_of() == []  # a partial prefill: thrown away
    assert rows_of(5, 8, known=Drafted([1, 1, 1], GUESSES, CHANCES)) == []
    (shorter,) = rows_of(5, 8, drafted=2)  # cut by a limit
    assert (shorter["ranks_to_miss"], shorter["drafted"]) == ([0, 0], 2)


def test_contexts_grow_and_requests_are_forgotten() -> None:
    log = DraftLog()
    for context, emitted in ((10, [5, 8, 9]), (13, [5])):
        log.drafted(["a"], [Drafted([5, 8, 2], GUESSES, CHANCES)])
        (row,) = map(json.loads, log.verified([Verified("a", [5, 8, 2], emitted, 10, 0.5)]))
        assert (row["context"], row["document"]) == (context, 0)
    log.forget(alive=())
    log.drafted(["a"], [Drafted([5, 8, 2], GUESSES, CHANCES)])
    (row,) = map(json.loads, log.verified([Verified("a", [5, 8, 2], [5], 10, 0.5)]))
    assert (row["context"], row["document"]) == (10, 1)


def written(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_shards_rotate_and_start_with_a_header(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "new", {"engine": "vllm"}, rows=3)
    for i in range(7):
        writer.put([f'{{"row": {i}}}\n'])
    writer.close()
    lines = [json.loads(line) for line in written(tmp_path / "new")]
    assert [line["row"] for line in lines if "row" in line] == list(range(7))
    headers = [line for line in lines if "row" not in line]
    assert headers == [{"treeopt_recorded": 1, "run": headers[0]["run"], "dropped": 0, "engine": "vllm"}] * 3
    assert writer.dropped == 0


def test_what_cannot_be_written_is_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = ShardWriter(tmp_path / "file" / "below", {"engine": "vllm"})
    for _ in range(5):
        writer.put(["a row\n", "another\n"])
    writer.close()
    assert writer.dropped == 10


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
def test_a_full_disk_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardWriter, "_opened", lambda self: Path("/dev/full").open("w"))  # noqa: SIM115
    writer = ShardWriter(tmp_path, {"engine": "vllm"})
    for _ in range(100):
        writer.put(["x" * 1000 + "\n"] * 10)
    writer.close()
    assert writer.dropped > 0


class Slow(ShardWriter):
    def _write(self, rows: list[str]) -> None:
        self.waiting.wait()  # type: ignore[attr-defined]


def test_a_slow_disk_drops_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(Slow, "waiting", threading.Event(), raising=False)
    writer = Slow(tmp_path, {"engine": "vllm"})
    for _ in range(5000):
        writer.put(["row\n"])
    assert writer.dropped >= 5000 - 4096 - 1
    Slow.waiting.set()  # type: ignore[attr-defined]
    writer.close()


torch = pytest.importorskip("torch", reason="the engine's tensors are torch's")
LOGITS = torch.tensor([[0.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 0.0]])  # two requests, four tokens


def runner_class() -> Any:
    """What of vLLM 0.32's V1 runner is wrapped; each step drafts the best token twice."""

    class Runner:
        def __init__(self) -> None:
            model = SimpleNamespace(compute_logits=lambda hidden: LOGITS)
            self.drafter = SimpleNamespace(model=model, use_local_argmax_reduction=True)
            self.input_batch = SimpleNamespace(req_ids=["a", "b"])
            params = SimpleNamespace(temperature=0.0)
            state = SimpleNamespace(num_prompt_tokens=4, sampling_params=params)
            self.requests = {"a": state, "b": state}
            self.discard_request_mask = SimpleNamespace(np=np.zeros(8, dtype=bool))

        def propose_draft_token_ids(self) -> Any:
            found = [self.drafter.model.compute_logits(None).argmax(-1) for _ in range(2)]
            return torch.stack(found, dim=1)

        def _sample(self, logits: Any, metadata: Any) -> Any:
            return SimpleNamespace(sampled_token_ids=logits)

    return Runner


def verdict(drafts: list[int]) -> Any:
    return SimpleNamespace(num_draft_tokens=[2, 2], draft_token_ids=torch.tensor(drafts))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    return runner_class()


def test_the_runner_is_recorded(engine: Any, tmp_path: Path) -> None:
    engine._treeopt_recorder = None
    plugin.attach(engine, tmp_path)
    runner = engine()
    runner._sample(torch.tensor([[3], [0]]), None)  # the prefill
    for _ in range(2):
        drafts = runner.propose_draft_token_ids()
        assert drafts.tolist() == [[1, 1], [2, 2]]
        found = runner._sample(torch.tensor([[1, 2, -1], [3, -1, -1]]), verdict([1, 1, 2, 2]))
        assert found.sampled_token_ids.tolist() == [[1, 2, -1], [3, -1, -1]]  # handed through
    assert runner.drafter.use_local_argmax_reduction is False
    engine._treeopt_recorder._writer.close()
    header, *rows = [json.loads(line) for line in written(tmp_path)]
    assert (header["engine"], header["version"], header["top"]) == ("vllm", "0.32.0", 32)
    assert [row["ranks_to_miss"] for row in rows] == [[0, 1], [3], [0, 1], [3]]
    assert [row["context"] for row in rows] == [5, 5, 7, 6]
    law = LOGITS.softmax(-1)
    assert rows[0]["probability"] == [round(float(law[0, 1]), 6), round(float(law[0, 2]), 6)]
    assert not {"tokens", "text", "request"} & rows[0].keys()


def test_a_rate_records_some_of_the_steps(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREEOPT_RECORD_RATE", "0.25")
    engine._treeopt_recorder = None
    plugin.attach(engine, tmp_path)
    runner = engine()
    for _ in range(8):
        runner.propose_draft_token_ids()
        runner._sample(torch.tensor([[1, 2, -1], [3, -1, -1]]), verdict([1, 1, 2, 2]))
    engine._treeopt_recorder._writer.close()
    assert len(written(tmp_path)) == 1 + 2 * 2


def test_a_recorder_that_fails_stops_and_serving_goes_on(engine: Any, tmp_path: Path) -> None:
    engine._treeopt_recorder = None
    plugin.attach(engine, tmp_path)
    runner = engine()
    runner.propose_draft_token_ids()
    runner.requests = {}  # not as this release of vLLM has it
    for _ in range(2):
        assert runner._sample(torch.tensor([[1, 2, -1], [3, -1, -1]]), verdict([1, 1, 2, 2])) is not None
    assert engine._treeopt_recorder.broken


def test_without_the_variable_nothing_is_touched(monkeypatch: pytest.MonkeyPatch, caplog: Any, tmp_path: Path) -> None:
    worker = ModuleType("vllm.v1.worker.gpu_model_runner")
    worker.GPUModelRunner = engine = runner_class()  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, worker.__name__, worker)
    before = dict(vars(engine))
    monkeypatch.delenv("TREEOPT_RECORD", raising=False)
    plugin.register()
    assert dict(vars(engine)) == before
    monkeypatch.setenv("TREEOPT_RECORD", str(tmp_path))
    for _ in range(2):  # the entry point is called more than once
        plugin.register()
    assert engine._sample is not before["_sample"]
    wrapped = engine._sample
    plugin.register()
    assert engine._sample is wrapped
    del worker.GPUModelRunner.propose_draft_token_ids, worker.GPUModelRunner._treeopt_recorder
    plugin.register()
    assert "has no propose_draft_token_ids" in caplog.text


def shard(tmp_path: Path, *rows: dict[str, Any], tail: str = "") -> Path:
    path = tmp_path / "shard.jsonl"
    lines = [json.dumps({"treeopt_recorded": 1, "engine": "vllm"}), *map(json.dumps, rows)]
    path.write_text("\n".join(lines) + "\n" + tail)
    return path


def row(ranks: list[int], accepted: int, *, drafted: int = 3, document: int = 0) -> dict[str, Any]:
    return {"document": document, "drafted": drafted, "accepted": accepted, "ranks_to_miss": ranks}


def test_shards_are_read_as_depth_by_rank_counts(tmp_path: Path) -> None:
    """By hand: four drafts, three whose first token was right, two of those whose second was."""
    path = shard(
        tmp_path, row([0, 0, 0], 3), row([0, 0, -1], 2), row([0, 2], 1, document=1), row([1], 0), tail='{"docu'
    )
    (profile,) = read_evidence([path]).profiles
    evidence = profile.evidence
    assert isinstance(evidence, DepthRanks)
    assert evidence.reached.tolist() == [4, 3, 2]
    assert evidence.counts.tolist() == [[3, 1, 0], [2, 0, 1], [1, 0, 0]]
    assert profile.documents == 2
    assert profile.conditions.sampling == "draft-starts"


@pytest.mark.parametrize(
    "wrong",
    [row([0, 0], 0), row([0] * 4, 3), row([], 0), row([0], 1) | {"document": "a"}, row([-2], 0), {"other": 1}],
)
def test_rows_that_cannot_be_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"shard\.jsonl:3: "):
        read_evidence([shard(tmp_path, row([0], 0), wrong)])


def test_what_was_lost_is_told(tmp_path: Path) -> None:
    """A killed server's shard, another behind it in the same stream, and rows that its disk did not take."""
    whole = shard(tmp_path, row([0, 2], 1), tail='{"docu')
    imported, found = read_evidence([whole]), tmp_path / "both.jsonl"
    (told,) = imported.warnings
    assert told.endswith("shard.jsonl: 1 line cut off, as a killed server leaves them: what it held is lost")
    header = json.dumps({"treeopt_recorded": 1, "run": "b", "dropped": 12, "engine": "vllm"})
    found.write_text(whole.read_text() + header + "\n" + json.dumps(row([0], 0)) + "\n")
    both = read_evidence([found])
    assert both.profiles[0].evidence.trials == 2
    assert [words.partition(": ")[2][:36] for words in both.warnings] == [
        "1 line cut off, as a killed server l",
        "the recorder had dropped 12 drafts: ",
    ]


def test_a_header_says_what_was_dropped_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeopt.record.shards._RETRY_S", 0.0)
    place = tmp_path / "ranks"
    place.touch()  # not a folder, yet
    writer = ShardWriter(place, {"engine": "vllm"})
    writer.put(["lost\n", "lost\n"])
    while writer.dropped < 2:
        pass
    place.unlink()
    writer.put(["kept\n"])
    writer.close()
    header, kept = written(place)
    assert (json.loads(header)["dropped"], kept) == (2, "kept")


def test_a_process_of_the_same_number_has_files_of_its_own(tmp_path: Path) -> None:
    """A server in a container that starts again in the same folder."""
    for _ in range(2):
        writer = ShardWriter(tmp_path, {"engine": "vllm"})
        writer.put(["a row\n"])
        writer.close()
        assert writer.dropped == 0
    assert len(list(tmp_path.iterdir())) == 2
