"""Which releases are newer than the checked ones, and what changed in the files that `export` rests on.

    PYTHONPATH=.:tests python tests/conformance/new_releases.py

Meant to be run weekly. Prints a unified diff per file and ends with 1 where there is a newer release.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

from conformance.wheels import names_of, text, wheel

from treeopt.engines.paths import EAGLE1
from treeopt.engines.release import Release, parse_release
from treeopt.engines.sglang import SGLANG
from treeopt.engines.vllm import VLLM

# By distribution: the release that was checked, and the files whose rules are known here.
CHECKED: dict[str, tuple[str, tuple[str, ...]]] = {
    "vllm": (
        VLLM.checked,
        (
            "vllm/config/speculative.py",
            "vllm/config/vllm.py",
            "vllm/v1/spec_decode/dynamic/utils.py",
            "vllm/v1/spec_decode/ngram_proposer.py",
        ),
    ),
    "sglang": (
        SGLANG.checked,
        (
            "sglang/srt/speculative/adaptive_spec_params.py",
            "sglang/srt/arg_groups/speculative_hook.py",
            "sglang/srt/arg_groups/cuda_graph_hook.py",
            "sglang/srt/arg_groups/fields/spec.py",
        ),
    ),
    "eagle-llm": (EAGLE1.checked, ("eagle/model/utils.py", "eagle/model/utils_c.py")),
}
_LISTED = re.compile(r"Available versions: (.*)")


def newer(checked: str, printed: str) -> list[str]:
    """The final releases after the checked one that `pip index versions` printed, the oldest first.

    Raises:
        ValueError: it printed no list.
    """
    found = _LISTED.search(printed)
    if found is None:
        raise ValueError("no list of versions")
    after: list[tuple[Release, str]] = []
    for version in found[1].split(", "):
        if re.fullmatch(r"[\d.]+(\.post\d+)?", version) and parse_release(version) > parse_release(checked):
            after.append((parse_release(version), version))
    return [version for _, version in sorted(after)]


def changes(project: str, checked: str, version: str, files: Sequence[str]) -> Iterator[str]:
    """What changed in the files between two releases, as a unified diff."""
    old, new = wheel(project, checked), wheel(project, version)
    for name in files:
        sides = [text(w, name).splitlines() if name in names_of(w) else [] for w in (old, new)]
        yield from difflib.unified_diff(*sides, f"{checked}/{name}", f"{version}/{name}", lineterm="", n=1)


def main() -> int:
    found = 0
    for project, (checked, files) in CHECKED.items():
        words = [sys.executable, "-m", "pip", "index", "versions", project]
        printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
        for version in newer(checked, printed):
            found = 1
            print(f"# {project} {version}, checked is {checked}")
            print("\n".join(changes(project, checked, version, files)))
    return found


if __name__ == "__main__":
    sys.exit(main())
