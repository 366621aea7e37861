"""A server on this machine that streams as vLLM does, with counters of its own, and fails as told.

One clock for all requests: a step takes `step_s` and gives every running request its tokens in one chunk. What a
request accepts is a fixed sequence, so that a test knows E; nothing here is read from the code under test.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

ACCEPTED = (2, 0, 1, 3)  # tokens accepted of K = 3 drafts, step by step and again: E = 2.5


@dataclass
class Fake:
    """What the server is and how it misbehaves."""

    drafts: int = 3  # K; 0 for a server without a drafter
    step_s: float = 0.004
    steps_per_chunk: int = 1
    at_once: int = 64
    fault: str = ""  # 429, 503, garbage, hang, die, no-usage, short; of its counters: see `metrics`
    fault_beside: int = 0  # how many requests must run already for a completion to go wrong
    requests: int = 0
    counted: dict[str, float] = field(default_factory=dict)
    positions: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    running: int = 0
    waiting: int = 0
    scrapes: int = 0
    port: int = 0

    def count(self, name: str, by: float) -> None:
        self.counted[name] = self.counted.get(name, 0.0) + by

    def metrics(self) -> str:
        """Counters, or those of a server that others use, that restarted, that counts no drafts, that damages them."""
        if self.fault == "damaged-metrics":
            return 'vllm:generation_tokens_total{engine="0"} many\n'
        self.scrapes += self.running > 1
        later = self.scrapes > 1  # the second one while requests run
        if self.fault == "restart" and later:
            self.counted, self.scrapes = {}, 0
        busy = int(self.fault == "other-requests" or (self.fault == "others-join" and later))
        if self.fault == "others-join" and later:
            self.count("tokens", 500.0)
        lines = [f'vllm:num_requests_running{{engine="0"}} {float(self.running + busy)}']
        lines += [f'vllm:num_requests_waiting{{engine="0"}} {float(self.waiting)}']
        lines += [f'vllm:generation_tokens_total{{engine="0"}} {self.counted.get("tokens", 0.0)}']
        for part in ("count", "sum"):
            lines += [f'vllm:inter_token_latency_seconds_{part}{{engine="0"}} {self.counted.get(part, 0.0)}']
        if self.drafts and self.fault != "no-drafts":
            for name in ("drafts", "draft_tokens", "accepted_tokens"):
                lines += [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {self.counted.get(name, 0.0)}']
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {n}'
                for i, n in enumerate(self.positions)
            ]
        return "# HELP x y\n" + "\n".join(lines) + "\n"


class _DiedError(Exception):
    pass


async def _answer(fake: Fake, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await _one(fake, reader, writer):
            pass
    except (_DiedError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def _one(fake: Fake, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split(" ")[1]
    length = next((int(h.split(":")[1]) for h in head.split("\r\n") if h.lower().startswith("content-length")), 0)
    body = json.loads(await reader.readexactly(length)) if length else {}
    if path == "/health":
        _send(writer, 200, "")
    elif path == "/v1/models":
        _send(writer, 200, json.dumps({"data": [{"id": "fake"}]}))
    elif path == "/metrics" and fake.fault != "no-metrics":
        _send(writer, 200, fake.metrics())
    elif path.endswith("completions"):
        await _complete(fake, writer, body)
    else:
        _send(writer, 404, "not found")
    await writer.drain()
    return True


def _send(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(text.encode())}\r\n\r\n{text}".encode())


async def _complete(fake: Fake, writer: asyncio.StreamWriter, body: dict[str, object]) -> None:
    fake.requests += 1
    fault = fake.fault if fake.running >= fake.fault_beside else ""
    if fault in ("429", "503"):
        _send(writer, int(fault), '{"error": "too many"}')
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    if fault == "hang":
        await writer.drain()
        await asyncio.sleep(30)
    while fake.running >= fake.at_once:
        fake.waiting += 1
        await asyncio.sleep(fake.step_s)
        fake.waiting -= 1
    fake.running += 1
    try:
        await _stream(fake, writer, int(str(body["max_tokens"])), fault)
    finally:
        fake.running -= 1


async def _stream(fake: Fake, writer: asyncio.StreamWriter, tokens: int, fault: str) -> None:
    total, step = 0, 0
    wanted = tokens - 5 if fault == "short" else tokens
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while total < wanted:
        step += 1
        await asyncio.sleep(max(begun + step * fake.step_s - loop.time(), 0.0))
        got = 1 if step == 1 else _draft(fake, step, tokens - total)
        total = min(total + got, wanted)
        fake.count("tokens", got)
        if step > 1:
            fake.count("count", 1)
            fake.count("sum", fake.step_s)
        if fault == "die" and step > 20:
            raise _DiedError
        if step % fake.steps_per_chunk == 0 or total >= wanted:
            _chunk(writer, "garbage {" if fault == "garbage" else json.dumps(_event(total, fault)))
            await writer.drain()
    _chunk(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")


def _draft(fake: Fake, step: int, left: int) -> int:
    """Tokens of one step: what is accepted and one more; at the end, drafts are cut to what may still come."""
    drafted = min(fake.drafts, left - 1)
    if drafted <= 0:
        return 1
    accepted = min(ACCEPTED[step % len(ACCEPTED)], drafted)
    fake.count("drafts", 1)
    fake.count("draft_tokens", drafted)
    fake.count("accepted_tokens", accepted)
    for i in range(accepted):
        fake.positions[i] += 1
    return accepted + 1


def _event(total: int, fault: str) -> dict[str, object]:
    usage = {} if fault == "no-usage" else {"usage": {"prompt_tokens": 7, "completion_tokens": total}}
    return {"choices": [{"text": ""}], **usage}


def _chunk(writer: asyncio.StreamWriter, data: str) -> None:
    text = f"data: {data}\n\n".encode()
    writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    """The server's address while it runs, in a thread of its own."""
    ready = threading.Event()
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        stop = asyncio.Event()
        stops.append((asyncio.get_running_loop(), stop))
        server = await asyncio.start_server(lambda r, w: _answer(fake, r, w), "127.0.0.1", 0)
        fake.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{fake.port}"
    finally:
        ((loop, stop),) = stops
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
