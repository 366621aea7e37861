"""What an engine does with a plan: load it once, take the tree of the current batch size, build its step.

python examples/trees_for_an_engine.py plan.yaml 4
"""

from __future__ import annotations

import sys

import treeopt


def main() -> None:
    plan = treeopt.load_plan(sys.argv[1])
    batch, prefix_len = int(sys.argv[2]), 100

    tree = plan.tree_for(batch)
    if len(tree) == 1:
        print(f"batch {batch}: plain decoding")
        return
    print(f"batch {batch}: {batch} x {len(tree)} tokens to verify")
    print("position ids:", tree.positions(prefix_len).tolist())
    print("attention mask [N, L + N]:", tree.step_mask(prefix_len).shape)
    for depth, width in enumerate(tree.expanded_widths.tolist()):
        print(f"drafter pass {depth + 1}: {batch} x {width} tokens")


if __name__ == "__main__":
    main()
