"""The prompts of other requests, which are worked on between a request's own steps.

In steady serving every other request ends and is replaced once while a request decodes its R tokens, and its
successor's prompt is worked on in between: B - 1 prompts in R tokens, whatever a step accepts. Judged on served times
per token in docs/served-time.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from treeopt.cost.forward_pass import ForwardPass
from treeopt.cost.step import ModelStep
from treeopt.errors import InputError

# vLLM's `max_num_batched_tokens` of a server, SGLang's `chunked_prefill_size` and TensorRT-LLM's `max_num_tokens`.
DEFAULT_CHUNK: Final = 8192
MAX_PROMPT: Final = 1 << 20


class Prompts(NamedTuple):
    """What is served: tokens of each prompt and of each answer, and of a prompt at most so many in one step."""

    tokens: int
    answer_tokens: int
    chunk_tokens: int = DEFAULT_CHUNK

    def checked(self) -> Prompts:
        """The same.

        Raises:
            InputError: a number below 1 or beyond what any model takes.
        """
        for what, value in zip(("prompts", "answers", "chunks"), self, strict=True):
            if not 1 <= value <= MAX_PROMPT:
                raise InputError(f"{what} of {value} tokens", hint=f"give 1 to {MAX_PROMPT} tokens")
        return self


def prefill_s(step: ModelStep, prompts: Prompts, *, running: int) -> float:
    """Seconds that one prompt adds to the steps in which it is worked on, beside `running` requests that decode.

    Its tokens run through the kernels of those steps; each attends to the ones before it, half of its own chunk on
    average. A prompt of 4 tokens in chunks of 2 attends to 1.5 keys, then to 3.5.
    """
    target = step.target
    total, begun, alone = 0.0, 0, _kernels_s(target, running)
    while begun < prompts.tokens:
        tokens = min(prompts.chunk_tokens, prompts.tokens - begun)
        attention = target.attention_s(np.array(1.0), np.array(1.0 * tokens), np.array(begun + (tokens + 1) / 2))
        total += max(_kernels_s(target, running + tokens) - alone, 0.0) + float(attention)
        begun += tokens
    return total


def between_tokens_s(step: ModelStep, prompts: Prompts, *, batch: int) -> float:
    """Seconds per token that a request of `batch` waits for the prompts of the others.

    Of 9 requests with answers of 100 tokens and prompts that take 50 ms, 8 x 50 / 100 = 4 ms.
    """
    return (batch - 1) * prefill_s(step, prompts, running=batch) / prompts.answer_tokens


def _kernels_s(target: ForwardPass, tokens: int) -> float:
    T = np.array(float(tokens))
    return float(target.layers_s(T) + target.experts_s(T) + target.elementwise_s(T) + target.all_reduce_s(T))
