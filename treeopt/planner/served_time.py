"""A bucket as it is served: what is left of its speedup between the prompts of other requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treeopt.answer import Note
from treeopt.cost.prefill import DEFAULT_CHUNK, Prompts, between_tokens_s
from treeopt.planner.inputs import Inputs
from treeopt.solve.bucket import Bucket


def served_notes(buckets: Sequence[Bucket], inputs: Inputs, answer_tokens: int) -> Iterator[Note]:
    """One sentence per bucket at its largest batch size; none where the prompts are not known or nobody else waits.

    A limit on the time per token is of undisturbed decoding, which is said where there are prompts.
    """
    names = inputs.names
    if names.prompt_tokens is None:
        return
    prompts = Prompts(names.prompt_tokens, answer_tokens, names.chunk_tokens or DEFAULT_CHUNK).checked()
    for bucket in buckets:
        if bucket.batch.max > 1:
            yield Note.note(_served(bucket, between_tokens_s(inputs.kernels, prompts, batch=bucket.batch.max), prompts))


def _served(bucket: Bucket, wait_s: float, prompts: Prompts) -> str:
    token_s = bucket.step_time_s / bucket.acceptance_length.value
    said = (
        f"served at batch {bucket.batch.max} with prompts of {prompts.tokens} and answers of {prompts.answer_tokens} "
        f"tokens, a request waits {1e3 * wait_s:.1f} ms per token for the prompts of the others, "
        f"{wait_s / (wait_s + token_s):.0%} of {1e3 * (wait_s + token_s):.1f} ms"
    )
    if not bucket.speculate or bucket.plain is None:
        return f"{said}; limits on the time per token are of undisturbed decoding"
    plain_s = bucket.plain.step_time_s
    gains = (plain_s / token_s, (plain_s + wait_s) / (token_s + wait_s))
    return f"{said}; of a speedup of {gains[0]:.2f}x {gains[1]:.2f}x is left, limits are of undisturbed decoding"
