"""`treeopt show`: a plan or a tree, drawn, with its mask and positions."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treeopt.cli.options import Json, PlanBatch

if TYPE_CHECKING:
    from treeopt.arrays import FloatArray
    from treeopt.plan.plan import Plan
    from treeopt.solve.bucket import Bucket
    from treeopt.tree import DraftTree


def show(
    file: Annotated[Path, typer.Argument(metavar="PLAN_OR_TREE", help="A plan, a tree file or a path list.")],
    batch: PlanBatch = None,
    ranks: Annotated[
        str | None, typer.Option(help="For a bare tree: the rank profile to take f from.", show_default=False)
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Prefix length L: for positions, and to pick a bucket.", show_default=False)
    ] = None,
    mask: Annotated[bool, typer.Option("--mask", help="Also draw the ancestor mask.")] = False,
    json: Json = False,
) -> None:
    """Draw a tree: its nodes with f(v), positions and what each attends to."""
    from treeopt.files.documents import read_document
    from treeopt.plan.reading import is_plan, parse_plan, parse_tree

    document = read_document(file, what="plan or tree")
    if is_plan(document):
        plan = parse_plan(document)
        if batch is None and len(plan.buckets) > 1:
            _show_plan(plan, json)
        else:
            bucket = plan.buckets[0] if batch is None else plan.bucket_for(batch, context)
            length = _length(context, bucket.context.max)
            _show_tree(bucket.tree, bucket.path_probabilities, length, mask, json, bucket)
        return
    tree = parse_tree(document)
    _show_tree(tree, _probabilities(tree, ranks), _length(context, 0), mask, json, None)


def _length(context: int | None, default: int) -> int:
    return default if context is None else context


def _probabilities(tree: DraftTree, ranks: str | None) -> FloatArray | None:
    if ranks is None:
        return None
    from treeopt.acceptance.loading import load_profile
    from treeopt.acceptance.model import path_probabilities
    from treeopt.files.shipped import locate

    return path_probabilities(load_profile(locate("ranks", ranks).path).model(), tree)


def _show_plan(plan: Plan, json: bool) -> None:
    if json:
        typer.echo(plan.json())
        return
    from treeopt.cli import console
    from treeopt.render import bucket_table, plan_heading

    console.result(plan_heading(plan), "", bucket_table(plan, console.width()))
    context = " --context L" if len(plan.contexts) > 1 else ""
    console.notes([f"add --batch B{context} to draw the tree of one bucket"])


def _show_tree(
    tree: DraftTree, f: FloatArray | None, prefix_len: int, mask: bool, json: bool, bucket: Bucket | None
) -> None:
    if json:
        typer.echo(json_format.dumps(_tree_document(tree, f, prefix_len), indent=2))
        return
    from treeopt.cli import console
    from treeopt.render import alternatives, draw, mask_picture, node_table

    nodes = node_table(tree, f, prefix_len)
    gaps = ", with rank gaps (some engines cannot draft it)" if tree.has_rank_gaps else ""
    if len(tree) == 1:
        console.result("do not speculate: the root alone is plain decoding")
    else:
        console.result(f"{len(tree)} nodes, depth {tree.depth}{gaps}", "", draw(tree, f), "")
        if bucket is not None and bucket.dynamic is not None:
            steps, topk, count = bucket.dynamic
            console.notes(
                [
                    f"the engine builds a tree of {count} nodes anew in every step (steps {steps}, topk {topk}); "
                    "drawn is the one it builds on average confidence"
                ]
            )
    console.result(nodes)
    if mask:
        console.result("", mask_picture(tree))
    if bucket is not None:
        console.result("", alternatives(bucket), "", bucket.reason)


def _tree_document(tree: DraftTree, f: FloatArray | None, prefix_len: int) -> dict[str, Any]:
    return {
        "format": "treeopt.show/1",
        "nodes": len(tree),
        "depth": tree.depth,
        "has_rank_gaps": tree.has_rank_gaps,
        "paths": [list(p) for p in tree.paths],
        "parents": tree.parents.tolist(),
        "positions": tree.positions(prefix_len).tolist(),
        "path_probabilities": None if f is None else f.tolist(),
        "mask": tree.ancestor_mask.astype(int).tolist(),
    }
