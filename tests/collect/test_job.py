from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treeopt.acceptance.loading import read_trace
from treeopt.acceptance.shards import TraceFiles
from treeopt.collect.job import CollectJob, PromptShard, run
from treeopt.collect.settings import CollectSettings
from treeopt.errors import FileFormatError, InputError

pytestmark = pytest.mark.filterwarnings("ignore")


def job(target: Path, prompts: Path, out: Path, **options: Any) -> CollectJob:
    defaults: dict[str, Any] = {"draft": "early-exit:2", "depth": 3, "max_new_tokens": 8, "temperature": 0.8}
    chosen = {name: options.pop(name) for name in list(options) if name in CollectSettings.__dataclass_fields__}
    settings = CollectSettings(target=str(target), **{**defaults, **chosen})
    return CollectJob(settings=settings, prompts=prompts, out=out, documents_per_part=3, **options)


def collect(job: CollectJob, *, stop_after: int | None = None) -> None:
    """The whole job, or until some documents are done, as if the process were killed there."""
    done = 0

    def advance(documents: int) -> None:
        nonlocal done
        done += documents
        if done == stop_after:
            raise KeyboardInterrupt

    with job.start() as collection:
        run(job, collection, advance=advance)
        assert done == job.documents
        collection.finish()


def folder(job: CollectJob) -> Path:
    return job.out.with_name(f"{job.out.name}.parts")


def test_the_same_job_makes_the_same_bytes(target: Path, prompts: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        collect(job(target, prompts, tmp_path / f"{name}.npz"))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.npz", "b.npz"}
    trace = read_trace(tmp_path / "a.npz", confidence=True)
    assert trace.documents == 10
    assert trace.topk_prob is not None
    assert TraceFiles.find(tmp_path / "a.npz").conditions() == job(target, prompts, tmp_path / "a.npz").conditions


def test_another_seed_makes_another_text(target: Path, prompts: Path, tmp_path: Path) -> None:
    collect(job(target, prompts, tmp_path / "a.npz"))
    collect(job(target, prompts, tmp_path / "b.npz", seed=1))
    assert (tmp_path / "a.npz").read_bytes() != (tmp_path / "b.npz").read_bytes()


def test_a_killed_run_goes_on_and_ends_the_same(target: Path, prompts: Path, tmp_path: Path) -> None:
    whole, killed = (job(target, prompts, tmp_path / name) for name in ("whole.npz", "killed.npz"))
    collect(whole)
    with pytest.raises(KeyboardInterrupt):
        collect(killed, stop_after=8)
    parts = sorted(folder(killed).glob("*.npz"))
    assert [path.name for path in parts] == ["part-000000.npz", "part-000001.npz"]  # 6 of the 8 documents are kept
    stamps = [path.stat().st_mtime_ns for path in parts]
    with killed.start() as again:
        assert [part.index for part in again.missing()] == [2, 3]
        assert again.set_aside == []
        run(killed, again, advance=lambda documents: None)
        assert [path.stat().st_mtime_ns for path in parts] == stamps
        again.finish()
    assert killed.out.read_bytes() == whole.out.read_bytes()
    assert not folder(killed).exists()


def test_only_the_same_job_goes_on(target: Path, prompts: Path, tmp_path: Path) -> None:
    begun = job(target, prompts, tmp_path / "t.npz")
    job(target, prompts, tmp_path / "t.npz", seed=9).start().release()  # it left nothing that could be lost
    with pytest.raises(KeyboardInterrupt):
        collect(begun, stop_after=5)
    with pytest.raises(InputError, match="another depth and seed"):
        job(target, prompts, tmp_path / "t.npz", depth=2, seed=5).start()
    with pytest.raises(InputError, match="another shard"):
        job(target, prompts, tmp_path / "t.npz", shard=PromptShard(index=0, count=2)).start()
    edited = tmp_path / "ten.jsonl"
    edited.write_text(prompts.read_text() + '{"token_ids": [1]}\n')
    with pytest.raises(InputError, match="another prompts_sha256"):
        job(target, edited, tmp_path / "t.npz").start()
    begun.start().release()  # refusing left no lock


def test_shards_make_up_the_whole(target: Path, prompts: Path, tmp_path: Path) -> None:
    collect(job(target, prompts, tmp_path / "whole.npz"))
    folder = tmp_path / "shards"
    folder.mkdir()
    for index in range(3):
        collect(job(target, prompts, folder / f"{index}.npz", shard=PromptShard(index=index, count=3)))
    with np.load(folder / "1.npz") as archive:
        assert np.unique(archive["doc_id"]).tolist() == [1, 4, 7]
    whole = read_trace(tmp_path / "whole.npz", confidence=True)
    merged = TraceFiles.find(folder).load(confidence=True)
    for name in ("rank", "doc_id", "pos", "topk_prob"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))


def test_too_many_shards(target: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="shard 10 has no documents"):
        job(target, prompts, tmp_path / "t.npz", shard=PromptShard(index=10, count=11)).start()


def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were loaded before the inputs were checked")

    monkeypatch.setattr("treeopt.decode.hf.HuggingFaceModel.load", load)


def test_wrong_prompts_are_found_before_the_weights_are_loaded(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_models(monkeypatch)
    path = tmp_path / "prompts.jsonl"
    for line, message in (
        ('{"token_ids": [50]}', r":2: token 50 is not in"),
        (json.dumps({"token_ids": [1] * 121}), r":2: 121 tokens and 8 new ones exceed the target's 128 positions"),
        ('{"messages": [{"role": "user", "content": "x"}]}', r":2: the chat template fails"),
        ('{"prompt": "  "}', r":2: the prompt has no tokens"),
    ):
        path.write_text('{"prompt": "w1 w2"}\n' + line + "\n")
        with pytest.raises(FileFormatError, match=message):
            job(target, path, tmp_path / "t.npz").start()
    assert not (tmp_path / "t.npz.parts").exists()


def test_another_vocabulary_is_found_before_the_weights_are_loaded(
    target: Path, prompts: Path, make_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = make_llama(tmp_path / "swapped", seed=3, words=["w0", "w2", "w1", *(f"w{i}" for i in range(3, 49))])
    no_models(monkeypatch)
    with pytest.raises(FileFormatError, match=r"token 'w1' is 1 in the target, 2 in it"):
        job(target, prompts, tmp_path / "t.npz", draft=str(swapped)).start()


def test_where_the_trace_cannot_be_written(prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    for name, message in (
        ("t.parquet", "written as .npz"),
        ("folder.npz", "is a directory"),
        ("missing/t.npz", "missing: no such file or directory"),
    ):
        with pytest.raises(InputError, match=message):
            job(tmp_path, prompts, tmp_path / name)


def test_a_folder_that_holds_something_else_is_left_alone(target: Path, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "t.npz.parts").mkdir()
    (tmp_path / "t.npz.parts" / "letter.txt").touch()
    with pytest.raises(InputError, match="holds something else"):
        job(target, prompts, tmp_path / "t.npz").start()


def test_models_that_are_not_there(prompts: Path, tmp_path: Path) -> None:
    for target, message in (
        (tmp_path / "missing.gguf", "no such file"),
        (tmp_path / "missing", "no such model"),
        (tmp_path, "cannot be loaded"),
    ):
        pytest.importorskip("transformers")
        with pytest.raises(InputError, match=message):
            job(target, prompts, tmp_path / "t.npz").start()
