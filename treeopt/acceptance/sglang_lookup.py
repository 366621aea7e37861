"""SGLang's n-gram drafts: a trie of what was written, and the tree that its matches make.

Source: sglang 0.5.23, `kernels/jit/csrc/ngram_corpus/trie.cpp` (`insert`, `buildRecency`; match type BFS, which is its
default) and `srt/speculative/ngram_worker.py`. Its trie holds the requests of a whole server: here it is one text's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

Paths = tuple[tuple[int, ...], ...]


class _Node(dict[int, "_Node"]):
    """Children by token, the most recent last."""


class RecencyTrie:
    """Runs of up to `depth` tokens; drafts as wide as `narrow` after the longest match and `wide` after none.

    Nothing is ever forgotten: SGLang's holds a million nodes.
    """

    def __init__(self, *, depth: int, narrow: int = 1, wide: int = 1) -> None:
        self._depth, self._narrow, self._wide = depth, narrow, wide
        self._root = _Node()

    def insert(self, tokens: Sequence[int]) -> None:
        """Every run of some tokens, its last token the most recent of those that followed the ones before."""
        for start in range(len(tokens)):
            node = self._root
            for token in tokens[start : start + self._depth]:
                child = node.pop(token) if token in node else _Node()
                node[token] = child  # the last one again
                node = child

    def draft(self, context: Sequence[int], *, nodes: int) -> Paths:
        """The paths behind a context, `nodes` at most, in the order in which they were found."""
        deepest = max(1, self._depth - 1)
        narrower = (self._wide - self._narrow) / deepest
        found: dict[tuple[int, ...], None] = {}
        for run, node in self._matches(context):
            waiting: deque[tuple[tuple[int, ...], float, _Node]] = deque()
            waiting.append(((), (deepest - run) * narrower + self._narrow, node))
            while waiting and len(found) < nodes:
                path, breadth, node = waiting.popleft()
                for token, child in islice(reversed(node.items()), max(1, int(breadth))):
                    if len(found) >= nodes:
                        break
                    found[*path, token] = None
                    waiting.append(((*path, token), breadth - narrower, child))
        return tuple(found)

    def _matches(self, context: Sequence[int]) -> list[tuple[int, _Node]]:
        """The runs at the end of a context after which something stood, the longest first."""
        found = []
        for run in range(min(len(context), self._depth), 0, -1):
            node: _Node | None = self._root
            for token in context[len(context) - run :]:
                node = None if node is None else node.get(token)
            if node:
                found.append((run, node))
        return found


def drafts_along(tokens: Sequence[int], *, first: int, depth: int, nodes: int) -> list[Paths]:
    """What is drafted behind the first `first`, `first` + 1, ... tokens of a text, by chains of the latest follower.

    A server puts into its trie the last `depth` tokens of each step, the prompt's before them never: a step's own
    tokens are there in the next one.
    """
    trie = RecencyTrie(depth=depth)
    found = []
    for end in range(first, len(tokens) + 1):
        found.append(trie.draft(tokens[:end], nodes=nodes))
        trie.insert(tokens[max(end - depth, 0) : end])
    return found
