"""The words of answers, for people who did not read the papers: `treeopt glossary`, and a line under a table."""

from __future__ import annotations

from typing import Final, NamedTuple

from treeopt.errors import UnknownNameError


class Word(NamedTuple):
    """A word with its meaning in one sentence, and the short form that stands under a table that uses it."""

    name: str
    meaning: str
    short: str = ""


WORDS: Final = (
    Word("target", "The model that is served; its own tokens are never changed by what is described here."),
    Word("drafter", "What guesses the target's next tokens: a small model, extra heads, or a look-up in the text."),
    Word("draft", "The guesses that a request sends to the target in one step: a chain, or a tree of alternatives."),
    Word("step", "One pass of the target over all running requests, with the drafter's work before it."),
    Word("plain decoding", "No draft: each step yields one token per request."),
    Word(
        "speedup",
        "Tokens/s over those of plain decoding, on the same engine at the same batch size.",
        "speedup: tokens/s over plain decoding's; [low, high] holds it with 80 %, the error of the price included",
    ),
    Word(
        "acceptance length, E",
        "Tokens that a request gets per step on average: the accepted guesses and one of the target's own, the bonus "
        "token. E = 1 + the sum of f over the draft's nodes. Plain decoding has E = 1.",
        "E: tokens per step, the target's own (bonus) token counted; [low, high] holds it with 95 %",
    ),
    Word(
        "K, num_speculative_tokens",
        "Guessed tokens that a request verifies per step: N - 1. A chain of K = 3 guesses 3 tokens ahead.",
        "K: guessed tokens per request and step, the last accepted token not counted{setting}",
    ),
    Word(
        "N, nodes",
        "Tokens that a request verifies per step: its guesses and the root, the last accepted token. N = K + 1.",
        "nodes: tokens that a request verifies per step: its guesses and the last accepted token (the root)",
    ),
    Word(
        "steps, topk, draft tokens",
        "A dynamic tree as engines are set to it: steps of the drafter, guesses that each node is followed by, and "
        "tokens that are verified: the root is one of them in SGLang, none in TensorRT-LLM and OpenVINO. Built anew in "
        "every step from the drafter's confidence.",
        "draft tokens: what a request verifies per step, the last accepted token {counted}{setting}",
    ),
    Word("depth, D", "Guesses on the longest way from the root: how many tokens ahead the draft reaches."),
    Word("rank", "Which of the drafter's guesses a token was: 0 is the likeliest."),
    Word("f", "The probability that a node is accepted, which needs all nodes above it accepted too."),
    Word("chain", "A draft with one guess per depth."),
    Word("tree", "A draft with several guesses per depth; of all of them the target keeps one path."),
    Word("batch, B", "Requests that run at the same time."),
    Word("context, L", "Tokens that a request has already: prompt and answer so far."),
    Word("verified tokens", "B x N: what the target computes in one step."),
    Word(
        "ridge",
        "Verified tokens at which reading the weights takes as long as computing with them; up to there guesses are "
        "nearly free.",
    ),
    Word("break-even E", "The acceptance length above which a draft is faster than plain decoding."),
    Word("bucket", "A range of batch sizes (and contexts) that shares one draft."),
    Word("tie", "A difference that the documents cannot tell, or of less than 0.5 %: then the smaller draft is taken."),
    Word(
        "optimality gap",
        "The share by which any other draft that was listed could at most be better; exact: 0, and all were.",
    ),
    Word(
        "interval",
        "[low, high]. Of acceptance: 95 %, over documents redrawn. Of tokens/s and speedup: 80 %, with the price's "
        "error, judged on published runs.",
    ),
    Word(
        "draft start", "A position where a draft begins. What follows it is harder to guess than the average position."
    ),
    Word("rank profile", "How often each guess was right, as counts or as a trace; what --ranks takes."),
    Word("hardware profile", "What kernels take on a GPU, measured or from its data sheet; what --hardware takes."),
    Word("plan", "The answer as a file: one draft per bucket, and what it was made from."),
)


def words_about(text: str) -> list[Word]:
    """The words that are named so, else those that speak of it; all of them for no text.

    Raises:
        UnknownNameError: none does.
    """
    named = [word for word in WORDS if text in word.name.split(", ")]
    found = named or [word for word in WORDS if text.lower() in f"{word.name} {word.meaning}".lower()]
    if not found:
        raise UnknownNameError("word", text, [word.name for word in WORDS])
    return found


def short(name: str, setting: str = "", *, counts_root: bool = True) -> str:
    """The line under a table for a word, with the engine's name of it."""
    word = next(word for word in WORDS if word.short and name in word.name.split(", "))
    counted = "counted" if counts_root else "not counted"
    return word.short.format(setting=f" ({setting})" if setting else "", counted=counted)
