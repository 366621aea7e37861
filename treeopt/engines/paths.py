"""The path list that Medusa, EAGLE-1, Hydra and TensorRT-LLM up to 1.3 load: `[[0], [1], [0, 0], ...]`, no root."""

from __future__ import annotations

import json

from treeopt.tree import DraftTree


def export_paths(tree: DraftTree) -> str:
    """The tree as one line of JSON, sorted by (depth, path), the root left out as these engines expect."""
    return json.dumps([list(path) for path in tree.paths])
