"""The example page and its picture: `python benchmarks/page.py` writes docs/report-example.html and docs/report.png.

From the real commands; the picture needs Chromium, and is left as it is without.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from treeopt.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
SEARCH = "search --batches 1,2,4,8,16,32 --model vicuna-7b --drafter medusa --out plan.yaml"
REPORT = "report plan.yaml --with chain:1 --out page.html"
# What of the page is shown, in pixels.
SIZE = (1200, 2250)
SHOWN = (0, 0, 1200, 1715)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def run(command: str) -> None:
    sys.argv = ["treeopt", *command.split()]
    with contextlib.suppress(SystemExit):
        main()


def picture(page: Path, out: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium: the picture is left as it is")
        return
    taken = page.with_suffix(".png")
    size = f"--window-size={SIZE[0]},{SIZE[1]}"
    subprocess.run(
        [chromium, *FLAGS, "--hide-scrollbars", size, f"--screenshot={taken}", page.as_uri()],
        check=True,
        capture_output=True,
    )
    with Image.open(taken) as whole:
        small = whole.convert("RGB").crop(SHOWN).quantize(64, dither=Image.Dither.NONE)
        small.save(out, optimize=True)


def write() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run(SEARCH)
        run(REPORT)
        page = Path("page.html").resolve()
        shutil.copyfile(page, DOCS / "report-example.html")
        picture(page, DOCS / "report.png")


if __name__ == "__main__":
    write()
