"""The page in a real browser: quiet, alone, within its window, readable by eye and by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import treeopt
from treeopt.planner.report import report_of

from .browser import MISSING, Browser, browser

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

STEPS = "batch,draft_tokens,step_ms,accept_len\n1,0,7,1\n1,2,9,2.1\n8,0,8,1\n8,2,10,2.1\n"
# Of every text the worst ratio of its colour to what stands behind it: WCAG 2.2, 1.4.3 asks for 4.5.
CONTRAST = """
const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return [m[0], m[1], m[2], m.length > 3 ? m[3] : 1]; };
const light = c => { const [r, g, b] = c.slice(0, 3).map(v => { v /= 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
for (const d of document.querySelectorAll("details")) d.open = true;
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || e.closest("script, style, title, desc")) continue;
  const style = getComputedStyle(e), drawn = e.closest("svg") ? style.fill : style.color;
  const a = light(parse(drawn)), b = light(behind(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push([walker.currentNode.data.trim().slice(0, 40), drawn, ratio]);
}
return found;
"""
WIDE = """
const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest("svg *")
  && !e.parentElement.closest(".scroll") && e.getBoundingClientRect().right > innerWidth + 0.5);
return [document.documentElement.scrollWidth - innerWidth, wide.map(e => e.outerHTML.slice(0, 80))];
"""
# Text of a picture that leaves its frame is cut on paper and covers its neighbour.
OUTSIDE = """
return [...document.querySelectorAll("svg text")].filter(t => {
  const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
  return a.left < b.left - 6 || a.right > b.right + 6 || a.top < b.top - 6 || a.bottom > b.bottom + 6;
}).map(t => t.textContent);
"""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every kind of plan."""
    from treeopt.render.report import page

    folder = tmp_path_factory.mktemp("pages")
    (folder / "steps.csv").write_text(STEPS)
    asked: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "trees": ({"batches": [1, 2, 4, 8, 16, 32, 64, 128, 256]}, ("chain:3", "none")),
        "chains": ({"batches": [1, 8, 64], "engine": "vllm", "drafter": "eagle3"}, ("chain:3",)),
        "medusa": ({"batches": [1, 16], "model": "vicuna-7b", "drafter": "medusa", "engine": "medusa"}, ()),
        "off": ({"batches": 512, "model": "llama-3.2-1b", "drafter": "model:llama-3.2-1b"}, ("chain:1",)),
        "table": ({"batches": [1, 8], "cost": str(folder / "steps.csv")}, ()),
        "rates": ({"batches": 8, "ranks": "example", "context": [1024, 8192]}, ("sglang:3,4,16",)),
    }
    for name, (question, rivals) in asked.items():
        plan = treeopt.search(**question)
        (folder / f"{name}.html").write_text(page(report_of(plan, *rivals), command="treeopt report plan.yaml"))
    return folder


KINDS = ("trees", "chains", "medusa", "off", "table", "rates")


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_quiet_alone_and_within_its_window(window: Browser, folder: Path, kind: str, width: int) -> None:
    file = folder / f"{kind}.html"
    window.open(file, width=width)
    assert window.console() == []
    assert [address for address in window.requests() if address != file.as_uri()] == []
    over, wide = window.run(WIDE)
    assert over <= 0, wide
    assert wide == []
    assert window.run(OUTSIDE) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_text_is_read_on_what_is_behind_it(window: Browser, folder: Path, kind: str, dark: bool) -> None:
    window.open(folder / f"{kind}.html", width=1440, dark=dark)
    page = window.run("return getComputedStyle(document.body).backgroundColor")
    assert page == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert window.run(CONTRAST) == []


def test_the_checks_see_what_they_look_for(window: Browser, folder: Path) -> None:
    window.open(folder / "off.html", width=360)
    window.run("""
      document.querySelector(".lead").style.color = "#aaaaaa";
      document.querySelector("h2").style.width = "500px";
      document.querySelector("svg text").setAttribute("transform", "translate(-90 40)");
      console.error("said"); new Image().src = "http://127.0.0.1:9/asked";
    """)
    assert window.run(CONTRAST) != []
    assert window.run(WIDE)[1] != []
    assert window.run(OUTSIDE) != []
    assert any("said" in line for line in window.console())
    assert any("/asked" in address for address in window.requests())


def test_the_settings_are_copied_by_keyboard_alone(window: Browser, folder: Path) -> None:
    window.open(folder / "chains.html", width=1440)
    window.devtools("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    for _ in range(8):
        window.press("\ue004")  # Tab
        if window.run("return document.activeElement.tagName") == "BUTTON":
            break
    assert window.run("return document.activeElement.textContent") == "Copy"
    assert window.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    window.press("\ue007")  # Enter
    window.devtools("Runtime.evaluate", {"expression": "new Promise(r => setTimeout(r, 300))", "awaitPromise": True})
    assert window.run("return document.activeElement.textContent") == "Copied"
    copied = {"expression": "navigator.clipboard.readText()", "awaitPromise": True}
    text = window.devtools("Runtime.evaluate", copied)["result"]["value"]
    assert text == window.run("return document.getElementById('settings-file').textContent")
    assert '"num_speculative_tokens"' in text


def test_numbers_open_by_keyboard(window: Browser, folder: Path) -> None:
    window.open(folder / "trees.html", width=360)
    window.run("document.querySelector('summary').focus()")
    window.press("\ue007")
    assert window.run("return document.querySelector('details').open")
    assert window.run(WIDE)[0] <= 0


def test_on_paper_it_is_light_and_whole(window: Browser, folder: Path) -> None:
    window.open(folder / "chains.html", width=1440, dark=True)
    window.devtools("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert window.run("return getComputedStyle(document.body).color") == "rgb(28, 32, 38)"
    assert window.run("return getComputedStyle(document.querySelector('button')).display") == "none"
    made = window.devtools("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert made["data"].startswith("JVBER")  # %PDF
