"""A vLLM server on this machine's CPU: started with an exported line, driven with prompts, scraped, stopped."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_S = 240
# A small server that starts quickly: one thread, no graphs, KV for a few hundred tokens per request.
FLAGS = (
    *("--enforce-eager", "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "32"),
    *("--no-enable-prefix-caching", "--gpu-memory-utilization", "0.1", "--skip-tokenizer-init"),
)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class Server:
    """Runs `launch`, the line that `treeopt export` prints, from a folder; a context manager."""

    def __init__(self, launch: str, *, bin_folder: Path, folder: Path) -> None:
        words = shlex.split(launch)
        assert words[:2] == ["vllm", "serve"], launch
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._words = [str(bin_folder / "vllm"), *words[1:], *FLAGS, "--port", str(self._port)]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        log = self._folder / "server.log"
        # sitecustomize folders and the checkout on PYTHONPATH are not the server's.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ENVIRONMENT
        with log.open("wb") as written:
            self._process = subprocess.Popen(
                self._words,
                cwd=self._folder,
                env=environment,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            try:
                self._get("/health")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(1.0)
            else:
                return self
        self.__exit__()
        raise AssertionError(log.read_text()[-4000:])

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def scrape(self) -> str:
        """What /metrics says now."""
        return self._get("/metrics").decode()

    def complete(self, prompts: Sequence[Sequence[int]], *, at_a_time: int, max_tokens: int) -> list[list[int]]:
        """The greedy continuation of each prompt, that many requests at a time."""
        with ThreadPoolExecutor(at_a_time) as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, max_tokens), prompts))

    def _complete(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        body = {
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "detokenize": False,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            found: dict[str, Any] = json.load(answer)
        tokens: list[int] = found["choices"][0]["token_ids"]
        return tokens

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=60) as answer:
            content: bytes = answer.read()
        return content
