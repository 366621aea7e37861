"""The heads' formulas once more, written out over whole rows: no cache, no library layer, one draft at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
Weights = dict[str, Any]
EPSILON, BASE = 1e-6, 10000.0
HEADS, KV_HEADS, WIDTH = 4, 2, 8


def normed(x: Any, weight: Any) -> Any:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt()


def turned(x: Any, positions: Any) -> Any:
    """`[n, heads, WIDTH]` by rotary angles, halves paired."""
    half = WIDTH // 2
    angle = positions[:, None, None] * BASE ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def attention(w: Weights, at: str, rows: Any, seen: Any, places: Any, seen_places: Any, mask: Any) -> Any:
    """`rows [n, ...]` over `seen [m, ...]`; each query head in a loop of its own."""
    q = (rows @ w[f"{at}.q_proj.weight"].T).unflatten(-1, (HEADS, WIDTH))
    k = (seen @ w[f"{at}.k_proj.weight"].T).unflatten(-1, (KV_HEADS, WIDTH))
    v = (seen @ w[f"{at}.v_proj.weight"].T).unflatten(-1, (KV_HEADS, WIDTH))
    if f"{at}.q_norm.weight" in w:
        q, k = normed(q, w[f"{at}.q_norm.weight"]), normed(k, w[f"{at}.k_norm.weight"])
    q, k = turned(q, places), turned(k, seen_places)
    mixed = []
    for head in range(HEADS):
        its = head * KV_HEADS // HEADS
        score = (q[:, head] @ k[:, its].T) / WIDTH**0.5
        mixed.append(score.masked_fill(~mask, float("-inf")).softmax(-1) @ v[:, its])
    return torch.cat(mixed, dim=-1) @ w[f"{at}.o_proj.weight"].T


def mlp(w: Weights, at: str, x: Any) -> Any:
    gate = torch.nn.functional.silu(x @ w[f"{at}.gate_proj.weight"].T)
    return (gate * (x @ w[f"{at}.up_proj.weight"].T)) @ w[f"{at}.down_proj.weight"].T


def layer(w: Weights, at: str, x: Any, *, first_norm: bool = True) -> Any:
    """One causal decoder layer over rows 0, 1, ..."""
    n = len(x)
    y = normed(x, w[f"{at}.input_layernorm.weight"]) if first_norm else x
    places, mask = torch.arange(n), torch.ones(n, n).tril().bool()
    x = x + attention(w, f"{at}.self_attn", y, y, places, places, mask)
    return x + mlp(w, f"{at}.mlp", normed(x, w[f"{at}.post_attention_layernorm.weight"]))


def eagle(w: Weights, embedded: Any, states: Any) -> Any:
    """`[n, H]` outputs, which are the next states and what the target's head reads."""
    x = torch.cat([embedded, states], dim=-1) @ w["fc.weight"].T + w["fc.bias"]
    return layer(w, "layers.0", x, first_norm=False)


def eagle3(w: Weights, embedded: Any, states: Any) -> Any:
    """`[n, H]` outputs before the last norm."""
    x = torch.cat(
        [normed(embedded, w["layers.0.input_layernorm.weight"]), normed(states, w["layers.0.hidden_norm.weight"])], -1
    )
    n = len(x)
    places, mask = torch.arange(n), torch.ones(n, n).tril().bool()
    x = states + attention(w, "layers.0.self_attn", x, x, places, places, mask)
    x = x + mlp(w, "layers.0.mlp", normed(x, w["layers.0.post_attention_layernorm.weight"]))
    more = sum(name.endswith("mlp.up_proj.weight") for name in w) - 1
    for i in range(1, 1 + more):
        x = layer(w, f"layers.{i}", x)
    return x


def dflash(w: Weights, block: Any, context: Any, root: int, *, causal: bool) -> Any:
    """`[size, H]` normed outputs of the block whose first row is the root, over the `[root, H]` context before it."""
    size, x = len(block), block
    places, before = torch.arange(root, root + size), torch.arange(root)
    own = torch.ones(size, size).tril().bool() if causal else torch.ones(size, size).bool()
    mask = torch.cat([torch.ones(size, root).bool(), own], dim=1)
    for i in range(sum(name.endswith("mlp.up_proj.weight") for name in w)):
        y = normed(x, w[f"layers.{i}.input_layernorm.weight"])
        seen = torch.cat([context, y])
        x = x + attention(w, f"layers.{i}.self_attn", y, seen, places, torch.cat([before, places]), mask)
        x = x + mlp(w, f"layers.{i}.mlp", normed(x, w[f"layers.{i}.post_attention_layernorm.weight"]))
    return normed(x, w["norm.weight"])


def drafted(
    text: list[int],
    first: int,
    depth: int,
    *,
    states: Any,
    embed: Callable[[list[int]], Any],
    run: Callable[[Any, Any], Any],
    guess: Callable[[Any], int],
    further: Callable[[int, Any], tuple[Any, Any]],
) -> list[list[int]]:
    """By depth, the top guess at every root: each draft over the whole text anew, pair by pair.

    `run` gives the outputs of all pairs, `further` the embedding and the state of the next one, by the true token there
    and the last output.
    """
    found: list[list[int]] = [[] for _ in range(depth)]
    for root in range(first - 1, len(text) - 1):
        embedded, held = embed(text[1 : root + 1]), states[:root]
        for d in range(1, min(depth, len(text) - 1 - root) + 1):
            out = run(embedded, held)[-1]
            found[d - 1].append(guess(out))
            if root + d < len(text):
                token, state = further(text[root + d], out)
                embedded, held = torch.cat([embedded, token[None]]), torch.cat([held, state[None]])
    return found
