"""Parts that were damaged, copied or half written, and processes that are killed at any write."""

from __future__ import annotations

import os
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import DATA, needs_shared

from treeopt.acceptance.profile import Conditions
from treeopt.collect import parts as parts_module
from treeopt.collect.parts import Collection, JobPart
from treeopt.collect.record import EncodedPrompt, TraceRows, to_npz
from treeopt.errors import InputError

DEPTH = 3
IDENTITY = {"format": "treeopt.collect/1", "seed": 1}


def parts_of(count: int) -> tuple[JobPart, ...]:
    """Two documents a part, numbered from 0 on."""
    return tuple(
        JobPart(index=i, documents=tuple(EncodedPrompt(doc_id=2 * i + k, tokens=np.arange(3)) for k in range(2)))
        for i in range(count)
    )


def rows_of(part: JobPart) -> bytes:
    """What any run of the job would record: ranks that depend on the document alone."""
    found = []
    for document in part.documents:
        rows = TraceRows.blank(document.doc_id, length=4, depth=DEPTH)
        rows.rank[:] = [[document.doc_id % 3, 0, 1], [1, 0, 0], [0, 2, -2], [0, -2, -2]]
        found.append(rows)
    return to_npz(found, Conditions(target="t", drafter="d"))


def opened(out: Path, count: int = 4, identity: dict[str, Any] = IDENTITY) -> Collection:
    return Collection.open(out, parts_of(count), identity, depth=DEPTH)


def collect(out: Path, count: int = 4, identity: dict[str, Any] = IDENTITY) -> list[str]:
    """The whole of a job, from wherever it stands; what was set aside."""
    with opened(out, count, identity) as collection:
        for part in collection.missing():
            collection.write(part, rows_of(part))
        collection.finish()
    return collection.set_aside


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    collect(tmp_path / "whole.npz")
    return (tmp_path / "whole.npz").read_bytes()


def begun(out: Path, written: int = 3) -> Path:
    """A job that was interrupted; its folder."""
    with opened(out) as collection:
        for part in collection.parts[:written]:
            collection.write(part, rows_of(part))
    return collection.folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def text(path: Path) -> None:
    path.write_text("ranks follow")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """One byte in the middle of the packed ranks."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        where = archive.getinfo("rank.npy").header_offset + 60
    data[where] ^= 0xFF
    path.write_bytes(bytes(data))


def of_another_job(path: Path) -> None:
    begun_elsewhere = path.parent.parent / "other.npz"
    with opened(begun_elsewhere, identity={**IDENTITY, "seed": 2}) as other:
        other.write(other.parts[1], rows_of(other.parts[1]))
        path.write_bytes(other.path(other.parts[1]).read_bytes())


def of_another_part(path: Path) -> None:
    path.write_bytes(path.with_name("part-000000.npz").read_bytes())


def of_another_shape(path: Path) -> None:
    part = parts_of(2)[1]
    with opened(path.parent.parent / "shape.npz") as other:
        rows = [TraceRows.blank(document.doc_id, length=4, depth=DEPTH + 1) for document in part.documents]
        other.write(part, to_npz(rows, Conditions()))
        path.write_bytes(other.path(part).read_bytes())


def without_mark(path: Path) -> None:
    path.write_bytes(rows_of(parts_of(2)[1]))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (cut, text, empty, flipped, of_another_job, of_another_part, of_another_shape, without_mark, a_folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_named_set_aside_and_collected_anew(
    damage: Callable[[Path], None], tmp_path: Path, whole: bytes
) -> None:
    out = tmp_path / "t.npz"
    path = begun(out) / "part-000001.npz"
    damage(path)
    with opened(out) as collection:
        (said,) = collection.set_aside
        assert str(path) in said
        assert "set aside as part-000001.npz.damaged0" in said
        assert path.with_name("part-000001.npz.damaged0").exists()
        assert [part.index for part in collection.missing()] == [1, 3]
    collect(out)
    assert out.read_bytes() == whole
    assert not collection.folder.exists()


@needs_shared
def test_the_part_that_broke_it_once(tmp_path: Path, whole: bytes) -> None:
    out = tmp_path / "t.npz"
    path = begun(out) / "part-000001.npz"
    path.write_bytes((DATA / "faults" / "break" / "truncated_part.npz").read_bytes())
    (said,) = collect(out)
    assert str(path) in said
    assert out.read_bytes() == whole


@pytest.mark.parametrize("job_file", [None, "", "[", '{"format": '])
def test_a_lost_job_file_is_written_anew_where_the_parts_are_ours(
    job_file: str | None, tmp_path: Path, whole: bytes
) -> None:
    out = tmp_path / "t.npz"
    manifest = begun(out) / "job.json"
    manifest.unlink()
    if job_file is not None:
        manifest.write_text(job_file)
    with opened(out) as collection:
        assert [part.index for part in collection.missing()] == [3]
        assert collection.set_aside == (
            [] if job_file is None else [f"{manifest} could not be read; it was written anew"]
        )
    collect(out)
    assert out.read_bytes() == whole


def test_without_a_job_file_parts_of_another_job_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "t.npz"
    folder = begun(out)
    (folder / "job.json").unlink()
    with pytest.raises(InputError, match=r"its job\.json is missing, and part-000000\.npz is of another collection"):
        opened(out, identity={**IDENTITY, "seed": 2})
    assert len(list(folder.glob("part-*.npz"))) == 3


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "t.npz.parts"
    folder.mkdir()
    (folder / "letter.txt").touch()
    with pytest.raises(InputError, match=r"holds something else: letter\.txt"):
        opened(tmp_path / "t.npz")


def test_a_second_process_is_told_of_the_first(tmp_path: Path) -> None:
    with opened(tmp_path / "t.npz"), pytest.raises(InputError, match=rf"another process \(pid {os.getpid()}\)"):
        opened(tmp_path / "t.npz")
    opened(tmp_path / "t.npz").release()


def test_parts_stay_until_the_trace_was_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bytes
) -> None:
    out = tmp_path / "t.npz"
    join = __import__("treeopt.collect.parts", fromlist=["_join"])._join

    def worn(parts: list[Path], file: Any) -> int:
        rows = join(parts, file)
        file.seek(200)
        file.write(b"\xff" * 20)
        return int(rows)

    out.write_bytes(b"an older trace")
    monkeypatch.setattr(parts_module, "_join", worn)
    with pytest.raises(InputError, match="the joined trace cannot be read back"):
        collect(out)
    assert out.read_bytes() == b"an older trace"
    assert len(list((tmp_path / "t.npz.parts").glob("part-*.npz"))) == 4
    monkeypatch.undo()
    assert collect(out) == []
    assert out.read_bytes() == whole


WRITES = ("replace", "rename", "fsync", "mkdir", "rmdir", "unlink", "chmod", "open")


def killed_at(call: int, out: Path) -> bool:
    """Run the job in a child that is killed before its n-th change of the file system; False if it ended before."""
    child = os.fork()
    if child == 0:
        left = call

        def counting(real: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return counted

        for name in WRITES:
            setattr(os, name, counting(getattr(os, name)))
        try:
            collect(out)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] != 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child at a chosen call")
def test_a_hundred_kills_change_nothing(tmp_path: Path, whole: bytes) -> None:
    """Every job is killed again and again, each time a little later, until it ends."""
    rng, kills, jobs = np.random.default_rng(0), 0, 0
    while kills < 100:
        out = tmp_path / f"{jobs}.npz"
        jobs += 1
        while killed_at(int(rng.integers(1, 60)), out):
            kills += 1
            assert not out.exists() or out.read_bytes() == whole
        assert out.read_bytes() == whole
    assert jobs > 3
    collect(tmp_path / "0.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["whole.npz", *(f"{i}.npz" for i in range(jobs))])
