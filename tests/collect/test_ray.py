"""Collecting on a local Ray with two workers. It takes a minute, so it runs when TREEOPT_TEST_RAY is set."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest

from treeopt.collect.job import CollectJob, run
from treeopt.collect.ray_pool import run_on_ray
from treeopt.collect.settings import CollectSettings
from treeopt.errors import InputError

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif("TREEOPT_TEST_RAY" not in os.environ, reason="starts a Ray cluster: set TREEOPT_TEST_RAY=1"),
]
DOCUMENTS = 24


@pytest.fixture(autouse=True)
def _quiet_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if importlib.util.find_spec("ray") is None:  # not imported here: Ray reads its environment when it is
        pytest.skip("needs ray[data]")


def job(target: Path, out: Path, *, draft: str = "early-exit:2") -> CollectJob:
    prompts = out.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"token_ids": [i, i + 1]}) + "\n" for i in range(DOCUMENTS)))
    settings = CollectSettings(
        target=str(target), draft=draft, depth=3, max_new_tokens=40, temperature=0.8, device="cpu"
    )
    return CollectJob(settings=settings, prompts=prompts, out=out, documents_per_part=2)


def collect(job: CollectJob) -> None:
    with job.start() as collection:
        run(job, collection, advance=lambda documents: None)
        collection.finish()


def family_below(pid: int) -> set[int]:
    """A process and all that it started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    family, found = {pid}, {pid}
    while found:
        found = {child for child, parent in parents.items() if parent in family} - family
        family |= found
    return family


def workers_below(pid: int) -> list[int]:
    """The actors that hold models, among the processes that a process started."""
    return [child for child in sorted(family_below(pid)) if b"MapWorker" in Path(f"/proc/{child}/cmdline").read_bytes()]


def listening(pids: set[int]) -> set[str]:
    """Where these processes accept connections: on the loopback interface, or elsewhere."""
    sockets = set()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(link))
    found = set()
    for line in (line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]):
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:  # 0A: listening
            found.add("loopback" if fields[1].partition(":")[0].endswith("0100007F") else fields[1])
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the worker in /proc")
def test_a_lost_worker_changes_nothing(target: Path, tmp_path: Path) -> None:
    alone, spread = job(target, tmp_path / "alone.npz"), job(target, tmp_path / "spread.npz")
    collect(alone)

    seen: list[int] = []
    killed: list[int] = []

    def advance(documents: int) -> None:
        seen.append(documents)
        if sum(seen) > 0 and not killed:
            assert listening(family_below(os.getpid())) == {"loopback"}
            workers = workers_below(os.getpid())
            assert len(workers) == 2
            os.kill(workers[0], signal.SIGKILL)
            killed.append(workers[0])

    with spread.start() as collection:
        run_on_ray(spread, collection, address="local", workers=2, advance=advance)
        assert killed
        assert sum(seen) == DOCUMENTS
        collection.finish()
    assert spread.out.read_bytes() == alone.out.read_bytes()


def test_a_cluster_goes_on_where_another_run_stopped(target: Path, tmp_path: Path) -> None:
    begun = job(target, tmp_path / "t.npz")

    def stop(documents: int) -> None:
        if documents:
            raise KeyboardInterrupt

    with begun.start() as collection:
        with pytest.raises(KeyboardInterrupt):
            run_on_ray(begun, collection, address="local", workers=2, advance=stop)
        kept = len(collection.missing())
        assert 0 < kept < len(begun.parts)
        run(begun, collection, advance=lambda documents: None)
        collection.finish()
    whole = job(target, tmp_path / "whole.npz")
    collect(whole)
    assert begun.out.read_bytes() == whole.out.read_bytes()


def test_what_the_workers_cannot_do_is_told(target: Path, tmp_path: Path) -> None:
    wrong = job(target, tmp_path / "t.npz", draft="early-exit:3")
    with wrong.start() as collection, pytest.raises(InputError, match="early exit after 3 of 3 layers"):
        run_on_ray(wrong, collection, address="local", workers=1, advance=lambda documents: None)


def test_no_cluster_there(target: Path, tmp_path: Path) -> None:
    there = job(target, tmp_path / "t.npz")
    with there.start() as collection, pytest.raises(InputError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        run_on_ray(there, collection, address="127.0.0.1:1", workers=1, advance=lambda documents: None)
