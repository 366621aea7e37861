"""A serving loop around a plan: capture once per bucket, then draft, verify and accept with the plan's tables.

The models are toys (the next token is a function of the last two), the loop is what an engine does on a GPU.

python examples/custom_engine.py plan.yaml
"""

from __future__ import annotations

import sys

import numpy as np

import treeopt

VOCABULARY = 97


def target(before: int, last: int) -> int:
    """The big model: what comes after two tokens."""
    return (31 * before + 17 * last + 5) % VOCABULARY


def drafter(before: int, last: int, guesses: int) -> list[int]:
    """The small model: its guesses, best first; it often knows better late than never."""
    right = target(before, last)
    place = (before * last) % (2 * guesses)  # beyond the guesses: it has no idea
    others = [(right + 1 + i) % VOCABULARY for i in range(guesses)]
    return [*others[:place], right, *others[place:]][:guesses]


def draft(bucket: treeopt.BucketTables, before: int, last: int) -> np.ndarray:
    """`[P + 1]` the tree's tokens; place P takes the padding. One drafter pass per depth, as in the captured graph."""
    tables, nodes = bucket.tables, bucket.shape.nodes
    guesses = int(tables.ranks.max(initial=0)) + 1
    tokens = np.zeros(nodes + 1, dtype=np.int64)
    tokens[0] = last
    for one in tables.passes:
        parents = one.parents
        above = np.where(parents == 0, before, tokens[tables.parents[parents]])
        listed = np.array([drafter(int(a), int(t), guesses) for a, t in zip(above, tokens[parents], strict=True)])
        tokens[one.nodes] = listed.ravel()[one.parent_slot * guesses + one.rank]
    return tokens


def verify(bucket: treeopt.BucketTables, tokens: np.ndarray, before: int) -> list[int]:
    """The accepted tokens and the bonus: walk the links, as a verification kernel does."""
    tables, node, above = bucket.tables, 0, before
    emitted: list[int] = []
    while True:
        wanted = target(above, int(tokens[node]))
        emitted.append(wanted)
        child = int(tables.next_child[node])
        while child != -1 and tokens[child] != wanted:
            child = int(tables.next_sibling[child])
        if child == -1:
            return emitted
        above, node = int(tokens[node]), child


def main() -> None:
    runtime = treeopt.load_runtime(sys.argv[1])
    graphs = {id(bucket): f"graph of {len(bucket.tree)} nodes" for bucket in runtime.buckets}  # capture here
    requests = [[start, start + 1] for start in range(1, 13)]
    emitted = steps = 0
    for step in range(40):
        running = requests[: 4 + step % 9]  # requests come and go
        bucket = runtime.select(len(running))
        if step % 10 == 0:
            print(f"step {step}: {len(running)} requests, {graphs[id(bucket)]}")
        for text in running:
            tokens = draft(bucket, text[-2], text[-1])
            accepted = verify(bucket, tokens, text[-2])
            text += accepted
            emitted, steps = emitted + len(accepted), steps + 1
    for text in requests:
        assert all(target(a, b) == c for a, b, c in zip(text, text[1:], text[2:], strict=False)), (
            "not what is said alone"
        )
    print(f"{emitted / steps:.2f} tokens per step, each as in plain decoding")


if __name__ == "__main__":
    main()
