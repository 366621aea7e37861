"""An OpenAI-compatible server from outside: what it is, what it counts, one streamed completion."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from treeopt.errors import InputError
from treeopt.extras import require
from treeopt.measure.counters import Counters, read_counters
from treeopt.measure.window import Chunk

if TYPE_CHECKING:
    import httpx

Prompt = str | tuple[int, ...] | tuple[dict[str, Any], ...]  # text, token ids, or the messages of a chat
_SHOWN: Final = 200


class ServerError(InputError):
    """The server, or the way to it, does not do what measuring needs."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A connection to one address; nothing else is ever asked.

    Raises:
        ServerError: by every method, where the server refuses, hangs, dies or answers something else.
    """

    url: str
    client: httpx.AsyncClient
    model: str

    async def counters(self) -> Counters | None:
        """What `/metrics` says now; None where the server has no such page."""
        with _told(self.url):
            answer = await self.client.get(f"{self.url}/metrics")
        return read_counters(answer.text) if answer.status_code == 200 else None

    async def stream(self, prompt: Prompt, tokens: int, into: list[Chunk]) -> int:
        """Complete a prompt by exactly `tokens` tokens, each chunk appended to `into` as it comes.

        Returns:
            The prompt's own tokens.
        """
        chat = not isinstance(prompt, str) and isinstance(prompt[0], dict)
        path, key = ("chat/completions", "messages") if chat else ("completions", "prompt")
        body = {
            "model": self.model,
            key: prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        prompt_tokens = 0
        with _told(self.url):
            async with self.client.stream("POST", f"{self.url}/v1/{path}", json=body) as answer:
                if answer.status_code != 200:
                    raise _refused(answer.status_code, (await answer.aread()).decode(errors="replace"))
                async for line in answer.aiter_lines():
                    at = time.perf_counter()  # before the line is looked into
                    if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                        prompt_tokens = _append(into, at, data)
        if not into or into[-1].tokens != tokens:
            got = into[-1].tokens if into else 0
            raise ServerError(
                f"a completion ended after {got} of {tokens} tokens",
                hint="the server must take `ignore_eos`, and --tokens with the prompt must fit its longest text",
            )
        return prompt_tokens


@asynccontextmanager
async def connected(url: str, *, timeout_s: float, api_key: str | None, model: str | None) -> AsyncIterator[Server]:
    """A server that answers, with the name of the model that it serves.

    Raises:
        ServerError: it does not answer, or serves no model.
    """
    httpx = require("httpx", extra="measure")
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ServerError(f"'{url}' is no address", hint="write it as http://127.0.0.1:8000")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=timeout_s, headers=headers, limits=limits, trust_env=False) as client:
        with _told(base):
            answer = await client.get(f"{base}/v1/models")
            if answer.status_code != 200:
                raise _refused(answer.status_code, answer.text)
            served = [entry["id"] for entry in answer.json()["data"]]
        if not served:
            raise ServerError(f"{base} serves no model", hint="look at its /v1/models")
        yield Server(url=base, client=client, model=model or str(served[0]))


def _append(into: list[Chunk], at: float, data: str) -> int:
    """Keeps what a chunk says; gives the number of the prompt's tokens."""
    try:
        usage = json.loads(data).get("usage")
        total, prompt = (None, 0) if usage is None else (int(usage["completion_tokens"]), int(usage["prompt_tokens"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ServerError(
            f"a chunk is no JSON of a completion: {data[:_SHOWN]!r}", hint="is this an OpenAI-compatible server?"
        ) from None
    if total is None:
        raise ServerError(
            "a chunk does not say how many tokens there are",
            hint="the server must take `stream_options.continuous_usage_stats` (vLLM and SGLang do)",
        )
    if total < (into[-1].tokens if into else 0):
        raise ServerError("the number of tokens of a stream fell", hint="is one prompt answered once? n must be 1")
    if total > (into[-1].tokens if into else 0):  # a chat begins with a role alone, the last chunk repeats the total
        into.append(Chunk(at, total))
    return prompt


def _refused(status: int, text: str) -> ServerError:
    hints = {
        401: "give the key in OPENAI_API_KEY",
        429: "it limits requests: lower --concurrency",
        503: "it is overloaded or still starting: try again",
    }
    hint = hints.get(status, "read the server's log")
    return ServerError(f"the server answered {status}: {' '.join(text.split())[:_SHOWN]}", hint=hint)


class _told:  # noqa: N801 (a context manager)
    """Turns what the connection raises into what the user can do about it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        httpx = require("httpx", extra="measure")
        if isinstance(error, httpx.TimeoutException):
            raise ServerError(f"{self.url} sent nothing for too long", hint="raise --timeout-s, or look at its log")
        if isinstance(error, httpx.ConnectError):
            raise ServerError(f"nothing answers at {self.url}", hint="start the server, or correct the address")
        if isinstance(error, httpx.HTTPError):
            raise ServerError(f"{self.url} broke off: {error or kind.__name__}", hint="look at the server's log")
        if isinstance(error, ValueError | KeyError | TypeError) and not isinstance(error, InputError):
            raise ServerError(f"{self.url} answered something else than expected", hint="is it OpenAI-compatible?")
