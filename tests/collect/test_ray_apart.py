"""Collecting on a Ray cluster that was started apart, by `ray start`, with a token. Opt-in: TREEOPT_TEST_RAY."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collect.test_ray import collect, job

ROOT = Path(__file__).parents[2]
RAN_S = 400
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif("TREEOPT_TEST_RAY" not in os.environ, reason="starts a Ray cluster: set TREEOPT_TEST_RAY=1"),
]


def ray(*words: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A node, in the foreground of its own session."""
    return subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Its address, and the environment of those who hold its token; a head of one processor and a node of another."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs ray[data]")
    port, token = free_port(), tmp_path / "token"
    token.write_text("a" * 64)
    environment = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    small = ("--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", "100000000")
    head = ray(
        *("--head", "--node-ip-address", "127.0.0.1", "--port", str(port), "--include-dashboard", "false", *small),
        environment=environment,
    )
    nodes: list[subprocess.Popen[Any]] = [head]
    try:
        knock(port)
        nodes.append(ray("--address", f"127.0.0.1:{port}", *small, environment=environment))
        yield f"127.0.0.1:{port}", environment
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(60)


def knock(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(1)
        else:
            return
    raise AssertionError("the head did not start")


def run(target: Path, out: Path, address: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command as a user gives it, in a process of its own."""
    spread = job(target, out)
    words = ["--target", str(target), "--draft", "early-exit:2", "--prompts", str(spread.prompts), "--out", str(out)]
    words += ["--depth", "3", "--max-new-tokens", "40", "--temperature", "0.8", "--device", "cpu"]
    words += ["--documents-per-part", "2", "--ray", address, "--workers", "2"]
    return subprocess.run(
        [sys.executable, "-m", "treeopt", "ranks", "collect", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RAN_S,
        check=False,
    )


def test_a_cluster_that_was_there_gives_the_same_bytes(
    target: Path, tmp_path: Path, cluster: tuple[str, dict[str, str]]
) -> None:
    address, environment = cluster
    ran = run(target, tmp_path / "spread.npz", address, environment)
    assert ran.returncode == 0, ran.stderr
    alone = job(target, tmp_path / "alone.npz")
    collect(alone)
    assert (tmp_path / "spread.npz").read_bytes() == alone.out.read_bytes()


def test_without_the_token_it_is_refused(target: Path, tmp_path: Path, cluster: tuple[str, dict[str, str]]) -> None:
    address, environment = cluster
    stranger = environment | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}
    (tmp_path / "other").write_text("b" * 64)
    ran = run(target, tmp_path / "spread.npz", address, stranger)
    assert ran.returncode != 0
    assert not (tmp_path / "spread.npz").exists()
