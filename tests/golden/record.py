"""Writes down what the commands give now: `PYTHONPATH=. python tests/golden/record.py [NAME ...]`.

Look at the difference (`git diff tests/golden`) before it is committed, and say in the message why it changed.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden.running import OUTPUTS, cases, run, same


def record(names: list[str]) -> None:
    OUTPUTS.mkdir(exist_ok=True)
    known = cases()
    unknown = set(names) - {case.name for case in known}
    if unknown:
        sys.exit(f"no such command in the list: {', '.join(sorted(unknown))}")
    for case in known:
        if (names and case.name not in names) or (case.needs_torch and find_spec("torch") is None):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = run(case, Path(folder))
        if not case.recorded.exists() or not same(found, case.recorded.read_text()):
            case.recorded.write_text(found)
            print(f"recorded {case.name}")
    for path in OUTPUTS.iterdir():
        if path.stem not in {case.name for case in known}:
            path.unlink()
            print(f"removed {path.name}")


if __name__ == "__main__":
    record(sys.argv[1:])
