"""Plans and trees as tables and drawings for a terminal. Nothing here computes, and only `treeopt.cli` calls it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from treeopt.compare import Comparison, Verdict
from treeopt.plan import Bucket, Estimate, Plan
from treeopt.ranks.model import FloatArray
from treeopt.tree import DraftTree

# A drawing with more nodes than this helps nobody; `treeopt show` draws all.
DRAWN_NODES = 24


def plan_heading(plan: Plan) -> Text:
    """What the plan was made from, in two lines."""
    model, hardware, ranks = dict(plan.model.facts), dict(plan.hardware.facts), dict(plan.ranks.facts)
    tp = f" x{model['tp']}" if model.get("tp", 1) != 1 else ""
    text = Text()
    text.append(plan.model.name, style="bold").append(f" {model.get('dtype', '')}{tp} on ")
    text.append(plan.hardware.name, style="bold")
    text.append(f" ({hardware.get('source', 'unknown')}), drafter {plan.drafter}, context {plan.context}\n")
    text.append("ranks ").append(plan.ranks.name, style="bold").append(f" ({ranks.get('evidence', 'unknown')}")
    if ranks.get("positions"):
        text.append(f", {ranks['positions']:,.0f} positions")
    if ranks.get("documents"):
        text.append(f", {ranks['documents']} documents")
    return text.append(")")


def one_bucket(bucket: Bucket) -> RenderableType:
    """The answer for one bucket: verdict, tree, alternatives, reason."""
    parts: list[RenderableType] = [Text(), _verdict(bucket), Text()]
    if bucket.speculate:
        parts += [
            Padding(draw(bucket.tree, bucket.path_probabilities, limit=DRAWN_NODES), (0, 2), expand=False),
            Text(),
        ]
    return Group(*parts, alternatives(bucket), Text(), _because(bucket))


def bucket_table(plan: Plan) -> Table:
    """One line per bucket."""
    table = _table("batch", "verify", "depth", "E", "break-even", "step ms", "tokens/s", "speedup", "chain", "plain")
    for b in plan.buckets:
        table.add_row(
            _batches(b),
            f"{len(b.tree)} nodes" if b.speculate else "do not speculate",
            str(b.tree.depth) if b.speculate else "",
            _estimate(b.expected_tokens) if b.speculate else "",
            f"{b.break_even_tokens:.2f}" if b.speculate else "",
            _ms(b.step_time_s),
            _rate(b.tokens_per_s),
            f"{_estimate(b.speedup)}x",
            f"{_rate(b.best_chain.tokens_per_s)} (K={b.best_chain.depth})",
            _rate(b.plain_tokens_per_s),
        )
    return table


def alternatives(bucket: Bucket) -> Table:
    """The choice beside the runner-up, the best chain and plain decoding, at the bucket's largest batch."""
    table = _table(f"at batch {bucket.batch_max}", "nodes", "depth", "E", "step ms", "tokens/s", "vs choice")
    chosen = "choice" if bucket.speculate else "choice: plain"
    table.add_row(
        Text(chosen, style="bold green"),
        str(len(bucket.tree)),
        str(bucket.tree.depth),
        _estimate(bucket.expected_tokens),
        _ms(bucket.step_time_s),
        _rate(bucket.tokens_per_s),
        "",
    )
    others = [("runner-up", bucket.runner_up), ("best chain", bucket.best_chain)]
    for name, option in others:
        if option is not None and option.nodes > 1:
            step_s = bucket.batch_max * option.expected_tokens / option.tokens_per_s
            row = (str(option.nodes), str(option.depth), f"{option.expected_tokens:.2f}", _ms(step_s))
            table.add_row(name, *row, _rate(option.tokens_per_s), f"{-option.loss:+.1%}")
    if bucket.speculate:
        plain = bucket.plain_tokens_per_s
        change = f"{plain / bucket.tokens_per_s - 1.0:+.1%}"
        table.add_row("plain decoding", "1", "0", "1.00", _ms(bucket.batch_max / plain), _rate(plain), change)
    return table


def draw(tree: DraftTree, f: FloatArray | None, *, limit: int | None = None) -> Tree:
    """The tree, each node with its rank and f; beyond `limit` nodes only the likeliest are drawn."""
    shown = set(range(len(tree)))
    if limit is not None and len(tree) > limit and f is not None:
        shown = set(np.argsort(-f, kind="stable")[:limit].tolist())
    legend = "" if f is None else "  (rank and f of each guess)"
    root = Tree(Text("root", style="bold").append(legend, style="dim not bold"), guide_style="dim")
    branches = {0: root}
    for node in range(1, len(tree)):
        if node in shown:
            label = Text(f"{tree.ranks[node]}", style="bold cyan")
            if f is not None:
                label.append(f"  {f[node]:.3f}", style="default not bold")
            branches[node] = branches[int(tree.parents[node])].add(label)
    if len(shown) < len(tree):
        root.add(Text(f"... and {len(tree) - len(shown)} less likely nodes", style="dim"))
    return root


def node_table(tree: DraftTree, f: FloatArray | None, prefix_len: int) -> Table:
    """Every node with its parent, position and what it attends to besides the prefix: the mask row by row."""
    table = _table("node", "path", "parent", "position", "f", "attends to")
    positions = tree.positions(prefix_len)
    for node, path in enumerate(tree.nodes):
        table.add_row(
            str(node),
            ",".join(map(str, path)) or "root",
            str(tree.parents[node]) if node else "",
            str(positions[node]),
            "" if f is None else f"{f[node]:.4f}",
            " ".join(map(str, np.flatnonzero(tree.ancestor_mask[node]))),
        )
    table.columns[1].justify = table.columns[5].justify = "left"
    return table


def mask_picture(tree: DraftTree) -> Text:
    """The ancestor mask `[N, N]`, one character a cell."""
    return Text("\n".join("".join("■" if cell else "·" for cell in row) for row in tree.ancestor_mask))


def comparison_table(found: Sequence[Comparison]) -> Table:
    """The plan against its rivals, batch by batch."""
    table = _table("batch", "against", "nodes", "E", "tokens/s", "plan's nodes", "E", "tokens/s", "gain", "plan is")
    styles = {Verdict.BETTER: "green", Verdict.TIE: "yellow", Verdict.WORSE: "red"}
    for c in found:
        table.add_row(
            str(c.batch),
            c.rival,
            str(c.other.nodes),
            f"{c.other.expected_tokens:.3f}",
            _rate(c.other.tokens_per_s),
            str(c.plan.nodes),
            f"{c.plan.expected_tokens:.3f}",
            _rate(c.plan.tokens_per_s),
            f"{c.gain:+.1%}",
            Text(c.verdict.value, style=styles[c.verdict]),
        )
    table.columns[1].justify = table.columns[9].justify = "left"
    return table


def _verdict(bucket: Bucket) -> Text:
    text = Text(f"Batch {_batches(bucket)}: ", style="bold")
    if not bucket.speculate:
        return text.append("do not speculate", style="bold yellow")
    shape = "a chain" if bucket.tree.is_chain else "this tree"
    text.append(f"verify {shape} of {len(bucket.tree)} nodes, depth {bucket.tree.depth}", style="bold green")
    text.append(f": {_estimate(bucket.expected_tokens)} tokens per step, {_estimate(bucket.speedup)}x plain decoding")
    return text


def _because(bucket: Bucket) -> Text:
    text = Text(bucket.reason[0].upper() + bucket.reason[1:] + ".")
    if bucket.sharing_loss > 0.0005:
        text.append(f"\nNo batch size of this bucket loses more than {bucket.sharing_loss:.1%} of its own best.")
    optimal = "exact (no tree is better under these inputs)" if bucket.optimality == "exact" else bucket.optimality
    return text.append(f"\nOptimality: {optimal}", style="dim")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _batches(bucket: Bucket) -> str:
    return str(bucket.batch_max) if bucket.batch_min == bucket.batch_max else f"{bucket.batch_min}-{bucket.batch_max}"


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}"
