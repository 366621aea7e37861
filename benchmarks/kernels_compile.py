"""What the kernels compile to, by hand, without a GPU: `python benchmarks/kernels_compile.py [--every]` prints tables.

They are the tables of docs/kernels.md. Nothing is timed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tests" / "kernels" / "compile_kernels.py"


def rows(*arguments: str) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), *arguments, "--jobs", str(os.cpu_count())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


WAYS = ("tma", "paged", "contiguous")


def attention_table(found: list[dict]) -> str:
    """One line per tile; what differs by the way K and V are read is given for tma / paged / contiguous."""
    lines = [
        "| keys/values, dtype | rows x keys | warps | buffers | registers, tma / paged / contiguous | shared, KB "
        "| programs per SM | products |",
        "|---|---|---|---|---|---|---|---|",
    ]
    tiles: dict[tuple[str, str, str], dict[str, dict]] = {}
    for row in found:
        if len(row["name"].split()) == 5:  # neither FP8, nor a window, nor the tree in the cache
            _, shape, dtype, tile, _ = row["name"].split()
            tiles.setdefault((shape, dtype, tile), {})[row["load"]] = row
    for (shape, dtype, tile), ways in tiles.items():
        every = list(ways.values())
        registers = " / ".join(str(ways[way]["registers"]) if way in ways else "-" for way in WAYS)
        lines.append(
            f"| {shape} {dtype} | {tile.replace('x', ' x ')} | {every[0]['warps']} | {every[0]['buffers']} "
            f"| {registers} "
            f"| {max(row['shared'] for row in every) / 1024:.0f} | {min(row['programs'] for row in every)} "
            f"| {', '.join(every[0]['products'])} |"
        )
    return "\n".join(lines)


def helper_table(found: list[dict]) -> str:
    lines = ["| kernel | warps | registers | shared, KB | programs per SM |", "|---|---|---|---|---|"]
    for row in found:
        shared = row["shared"] / 1024
        lines.append(f"| {row['name']} | {row['warps']} | {row['registers']} | {shared:.0f} | {row['programs']} |")
    return "\n".join(lines)


def main() -> None:
    found = rows("small", "128", "192", "256", "latent", "float32", "helpers", *sys.argv[1:])
    spilled = [row["name"] for row in found if row["stack"] or row["spills"]]
    print(f"{len(found)} binaries, {len(spilled)} of them spill registers.\n")
    for arch in ("sm_90", "sm_100", "sm_80", "sm_86", "sm_89", "sm_120", "gfx942"):
        mine = [row for row in found if row["arch"] == arch]
        print(f"### {arch}\n\n{attention_table([r for r in mine if 'load' in r])}\n")
    print(f"### The other kernels, sm_90\n\n{helper_table([r for r in found if 'load' not in r and r['arch'] == 90])}")


if __name__ == "__main__":
    main()
