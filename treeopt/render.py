"""Plans and trees as tables and drawings for a terminal. Nothing here computes, and only `treeopt.cli` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from treeopt.compare import Comparison, Verdict
from treeopt.plan import Bucket, Estimate, Plan
from treeopt.ranks.model import FloatArray
from treeopt.ranks.profile import RankProfile
from treeopt.replaying import Replayed
from treeopt.tree import DraftTree

if TYPE_CHECKING:
    from treeopt.ranks.importers import Imported  # thirty files that only one command needs

# From this many columns on a terminal gets every number of a plan.
WIDE = 130
# A drawing with more nodes than this helps nobody; `treeopt show` draws all.
DRAWN_NODES = 24


def plan_heading(plan: Plan) -> Text:
    """What the plan was made from, in two lines."""
    model, hardware, ranks = dict(plan.model.facts), dict(plan.hardware.facts), dict(plan.ranks.facts)
    tp = f" tp {model['tp']}" if model.get("tp", 1) != 1 else ""
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


def bucket_table(plan: Plan, width: int = WIDE) -> Table:
    """One line per bucket; a narrow terminal gets fewer columns rather than cut numbers."""
    wide = width >= WIDE
    held_out = ["held-out E"] if any(b.held_out_tokens is not None for b in plan.buckets) else []
    prices = ["break-even E", "step ms"] if wide else []
    rivals = ["best chain", "plain"] if wide else []
    table = _table("batch", "verify", "depth", "E", *held_out, *prices, "tokens/s", "speedup", *rivals)
    for b in plan.buckets:
        yes, chain = b.speculate, b.best_chain
        cells = [_batches(b), f"{len(b.tree)} nodes" if yes else "nothing", str(b.tree.depth) if yes else ""]
        cells.append(_estimate(b.expected_tokens) if yes else "")
        cells += [_estimate(b.held_out_tokens)] if b.held_out_tokens is not None else []
        cells += [f"{b.break_even_tokens:.2f}" if yes else "", _ms(b.step_time_s)] if wide else []
        cells += [_rate(b.tokens_per_s), _speedup(b.speedup) if yes else "do not speculate"]
        if wide:
            cells += [
                f"{_rate(chain.tokens_per_s)} (K={chain.depth})" if chain.depth else "",
                _rate(b.plain_tokens_per_s),
            ]
        table.add_row(*cells)
    return table


def alternatives(bucket: Bucket) -> Table:
    """The choice beside the runner-up, the best chain and plain decoding, at the bucket's largest batch."""
    table = _table(f"at batch {bucket.batch_max}", "nodes", "depth", "E", "step ms", "tokens/s", "against it")
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
            table.add_row(name, *row, _rate(option.tokens_per_s), _percent(-option.loss))
    if bucket.speculate:
        plain = bucket.plain_tokens_per_s
        change = _percent(plain / bucket.tokens_per_s - 1.0)
        table.add_row("plain decoding", "1", "0", "1.00", _ms(bucket.batch_max / plain), _rate(plain), change)
    return table


def draw(tree: DraftTree, f: FloatArray | None, *, limit: int | None = None) -> Tree:
    """The tree, each node with its rank and f; beyond `limit` nodes only the likeliest are drawn."""
    shown = set(range(len(tree)))
    if limit is not None and len(tree) > limit and f is not None:
        shown = set(np.argsort(-f, kind="stable")[:limit].tolist())
    legend = "" if f is None else "  (rank of each guess, and f: how often its whole path is accepted)"
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
    table = _table("batch", "tree", "nodes", "E", "tokens/s", "plan gains", "plan is")
    table.columns[1].justify = table.columns[6].justify = "left"
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    styles = {Verdict.BETTER: "green", Verdict.TIE: "yellow", Verdict.WORSE: "red"}
    rows = sorted(found, key=lambda c: c.batch)
    for i, c in enumerate(rows):
        if i == 0 or c.batch != rows[i - 1].batch:
            plan = (str(c.plan.nodes), f"{c.plan.expected_tokens:.3f}", _rate(c.plan.tokens_per_s))
            table.add_row(str(c.batch), Text("the plan", style="bold"), *plan)
        other = (str(c.other.nodes), f"{c.other.expected_tokens:.3f}", _rate(c.other.tokens_per_s), _gain(c))
        table.add_row("", c.rival, *other, Text(c.verdict.value, style=styles[c.verdict]))
    return table


def _verdict(bucket: Bucket) -> Text:
    text = Text(f"Batch {_batches(bucket)}: ", style="bold")
    if not bucket.speculate:
        return text.append("do not speculate", style="bold yellow")
    shape = "a chain" if bucket.tree.is_chain else "this tree"
    text.append(f"verify {shape} of {len(bucket.tree)} nodes, depth {bucket.tree.depth}", style="bold green")
    text.append(f": {_estimate(bucket.expected_tokens)} tokens per step, {_speedup(bucket.speedup)} plain decoding")
    return text


def _because(bucket: Bucket) -> Text:
    text = Text(bucket.reason[0].upper() + bucket.reason[1:] + ".")
    if bucket.resolvable is not None:
        text.append(
            f"\nThese documents show differences of {bucket.resolvable:.1%} in tokens/s and more; four times as "
        )
        text.append("many would halve that, and the intervals.")
    if bucket.held_out_tokens is not None:
        off = bucket.expected_tokens.value / bucket.held_out_tokens.value - 1.0
        text.append(
            f"\nOn held-out documents: {_estimate(bucket.held_out_tokens)} tokens per step ({off:+.1%} predicted)."
        )
    for c in bucket.categories:
        text.append(
            f"\n{c.name} ({c.weight:.0%} of drafts): {c.expected_tokens:.2f} tokens per step; its own best tree "
        )
        text.append(f"would be {c.loss:.1%} faster" if c.loss >= 0.001 else "is no faster")
    if bucket.sharing_loss > 0.0005 and bucket.batch_min < bucket.batch_max:
        text.append(f"\nNeither end of this range loses more than {bucket.sharing_loss:.1%} of its own best.")
    return text.append(f"\nOptimality: {bucket.optimality}.", style="dim")


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


def _gain(c: Comparison) -> str:
    if c.interval is None:
        return _percent(c.gain)
    return f"{_percent(c.gain)} [{_percent(c.interval.low)}, {_percent(c.interval.high)}]"


def _percent(share: float) -> str:
    return f"{share + 0.0:+.1%}".replace("-0.0%", "+0.0%")


def _speedup(estimate: Estimate) -> str:
    value, space, interval = _estimate(estimate).partition(" ")
    return f"{value}x{space}{interval}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"


def replay_table(rows: Sequence[Replayed]) -> Table:
    """Replayed trees, the prediction beside them."""
    dynamic = ["dynamic", "at most"] if any(row.dynamic_gain is not None for row in rows) else []
    columns = ("replayed E", "95 % interval", "predicted", "off by", "all positions", "steps")
    table = _table("batch", "nodes", *columns, *dynamic)
    for row in rows:
        off = "" if row.difference is None else _percent(row.difference)
        batch = "" if row.batch_max is None else str(row.batch_max)
        table.add_row(
            batch if row.batch_min == row.batch_max else f"{row.batch_min}-{batch}",
            str(row.nodes),
            f"{row.tokens_per_step:.3f}",
            "too few documents" if row.low is None or row.high is None else f"[{row.low:.3f}, {row.high:.3f}]",
            "" if row.predicted is None else f"{row.predicted:.3f}",
            off,
            f"{row.all_positions:.3f}",
            f"{row.steps:,.0f}",
            *(_percent(g) for g in (row.dynamic_gain, row.dynamic_upper) if g is not None),
        )
    return table


def rank_report(profile: RankProfile) -> RenderableType:
    """A rank profile: evidence, conditions, rates by depth and rank."""
    head = Text(profile.name, style="bold").append(f": {profile.kind}", style="not bold")
    if profile.evidence.trials is not None:
        head.append(f", {profile.evidence.trials:,.0f} drafts", style="not bold")
    if profile.documents:
        head.append(f", {profile.documents} documents", style="not bold")
    lines = [Text(f"  {key}: {value}", style="dim") for key, value in profile.conditions.known().items()]
    if profile.note:
        lines.append(Text(f"  note: {profile.note}", style="dim"))
    model = profile.model()
    shown = min(model.ranks, 8)
    table = _table("depth", *(f"rank {r}" for r in range(shown)), *(["others"] if model.ranks > shown else []))
    for depth in range(model.depth):
        # Along the path of top guesses: what depends on the path has no other single row per depth.
        row = model.conditional(np.zeros((1, depth), dtype=np.int64))[0]
        cells = [f"{p:.3f}" for p in row[:shown]]
        table.add_row(str(depth + 1), *cells, *([f"{row[shown:].sum():.3f}"] if model.ranks > shown else []))
    along = "" if model.product_form else ", after top guesses only"
    return Group(head, *lines, Text(), Text(f"probability of each rank{along}", style="dim"), table)


def imported_report(imported: Imported) -> RenderableType:
    """What a file held, source by source, and what can be planned from it."""
    parts: list[RenderableType] = [Text(f"kind: {imported.kind}", style="bold")]
    for source in imported.sources:
        tally = source.tally
        counts = {
            "K": tally.draft_tokens,
            "drafts": tally.drafts,
            "drafted tokens": tally.drafted_tokens,
            "accepted tokens": tally.accepted_tokens,
        }
        told = [f"{name} {value:,}" for name, value in counts.items() if value is not None]
        if tally.mean_accepted_length is not None:
            told.append(f"mean accepted length {tally.mean_accepted_length:.4g}")
        parts += [Text(), rank_report(source.profile)]
        parts += [Text(f"counts: {', '.join(told)}")] if told else []
        parts += [Text(f"known only as a sum: {known}") for known in source.known_sums]
        parts.append(Text(f"supports: {source.supports}", style="green"))
    parts += [Text(f"not planned from: {u}", style="yellow") for u in imported.unplanned]
    return Group(*parts)
