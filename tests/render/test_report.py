"""The page says in its tables and words what the plan and `compare` say, and asks for nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import treeopt
from treeopt.planner.report import report_of
from treeopt.render.text import estimate, gain, rate, speedup
from treeopt.tree import DraftTree

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from treeopt.render.pictures.trees import tree_picture
from treeopt.render.report import page


class Tables(HTMLParser):
    """The cells of every table, by its label; and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.text: list[str] = []
        self._rows: list[list[str]] = []
        self._cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("role") == "region":
            self._rows = self.tables.setdefault(str(given["aria-label"]), [])
        if tag == "tr":
            self._rows.append([])
        self._cell = tag in ("td", "th")
        if self._cell:
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._cell:
            self._rows[-1][-1] += data

    def rows(self, label: str) -> Iterator[dict[str, str]]:
        head, *rows = self.tables[label]
        return (dict(zip(head, row, strict=True)) for row in rows)


@pytest.fixture(scope="module")
def plan() -> treeopt.Plan:
    return treeopt.search([1, 8, 64], command="treeopt search --batches 1,8,64")


@pytest.fixture(scope="module")
def html(plan: treeopt.Plan) -> str:
    return page(report_of(plan, "chain:2", "none"), command="treeopt report plan.yaml")


def test_the_tables_hold_the_plans_numbers(plan: treeopt.Plan, html: str) -> None:
    read = Tables(html)
    for bucket, row in zip(plan.buckets, read.rows("The plan"), strict=True):
        assert row["batch"] == bucket.batches
        assert row["E"] == estimate(bucket.acceptance_length)
        assert row["tokens/s"] == rate(bucket.tokens_per_s)
        assert row["speedup"] == speedup(bucket.speedup)
        assert row["verdict"] == bucket.verdict.value.replace("-", " ")
    rates = {row["batch"]: row for row in read.rows("Tokens per second over batch size")}
    speedups = {row["batch"]: row for row in read.rows("Speedup over plain decoding, by batch size")}
    for bucket in plan.buckets:
        at = str(bucket.batch.max)
        assert rates[at]["the plan"].startswith(f"{rate(bucket.tokens_per_s)} [")
        assert rates[at]["best chain"].startswith(rate(bucket.best_chain.tokens_per_s))
        assert bucket.plain is not None
        assert rates[at]["plain decoding"].startswith(rate(bucket.plain.tokens_per_s))
        assert speedups[at]["the plan"] == speedup(bucket.speedup)
    whys = {row["batch"]: row["why"] for row in read.rows("Reasons")}
    assert whys == {bucket.batches: bucket.reason for bucket in plan.buckets}


def test_comparisons_are_those_of_compare(plan: treeopt.Plan, html: str) -> None:
    rows = list(Tables(html).rows("Comparisons"))
    for c, row in zip(treeopt.compare(plan, "chain:2", "none").comparisons, rows, strict=True):
        assert (row["batch"], row["against"], row["plan gains"]) == (str(c.batch), c.rival, gain(c.gain))
        assert (row["tokens/s"], row["the plan's"]) == (rate(c.other.tokens_per_s), rate(c.plan.tokens_per_s))


def test_the_terms_are_the_plans(plan: treeopt.Plan, html: str) -> None:
    rows = iter(Tables(html).rows("Where the time of a step goes"))
    for bucket in plan.buckets:
        assert bucket.sensitivity is not None
        for term in bucket.sensitivity.terms:
            row = next(rows)
            assert (row["term"], row["step ms"]) == (term.name.replace("_", " "), f"{1e3 * term.step_s:.2f}")


def test_notes_hashes_and_commands_are_there(plan: treeopt.Plan, html: str) -> None:
    text = "".join(Tables(html).text)
    assert all(note.text in text for note in plan.notes)
    assert "treeopt search --batches 1,8,64" in text
    assert "treeopt report plan.yaml" in text
    for source in (plan.sources.ranks, plan.sources.hardware, plan.sources.model):
        assert source.sha256[:16] in text


def test_nothing_is_asked_for_from_elsewhere(html: str) -> None:
    assert re.findall(r"""(?:src|href)=["']?(?!#|data:)([^"' >]+)""", html) == []
    assert "@import" not in html
    assert not re.findall(r"url\((?!#|'#)", html)
    assert len(html.encode()) < 1_000_000


def test_a_picture_is_read_aloud_and_takes_the_pages_colours(html: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(pictures) >= 8
    names = []
    for picture in pictures:
        assert re.search(r"<title id=[^>]+>[^<]+</title><desc id=[^>]+>[^<]{10,}</desc>", picture)
        assert not re.findall(r"(?:fill|stroke): #(?!none)", picture)  # a colour of its own would not turn dark
        names += re.findall(r' id="([^"]+)"', picture)
    assert len(set(names)) == len(names)


def test_the_same_plan_gives_the_same_page(plan: treeopt.Plan, html: str) -> None:
    assert page(report_of(plan, "chain:2", "none"), command="treeopt report plan.yaml") == html


def test_names_of_files_are_text(tmp_path: Path) -> None:
    ranks = tmp_path / "<b>&ranks.yaml"
    ranks.write_text(Path(treeopt.__file__).parent.joinpath("profiles", "ranks", "example.yaml").read_text())
    made = page(report_of(treeopt.search(8, ranks=str(ranks))), command="treeopt report '<script>'")
    assert "<b>&ranks" not in made
    assert "report '<script>'" not in made


def test_the_example_is_such_a_page(html: str) -> None:
    """Its numbers are those of the day that it was made; its parts are today's."""
    example = (Path(__file__).parents[2] / "docs" / "report-example.html").read_text()

    def parts(page: str) -> list[str]:
        return re.findall(r"<h2 id=.(\w+).>", page)

    assert parts(example) == parts(html), "run `python benchmarks/page.py`"
    style = re.compile(r"<style>.*?</style>|<script>.*?</script>", re.DOTALL)
    assert style.findall(example) == style.findall(html), "run `python benchmarks/page.py`"


def test_a_plan_of_before_becomes_a_page() -> None:
    for file in (Path(__file__).parents[1] / "plan" / "version_1").glob("*.yaml"):
        assert "<!doctype html>" in page(report_of(file), command="treeopt report")


def test_a_tree_is_told_path_by_path() -> None:
    tree = DraftTree(((0,), (1,), (0, 0)))
    picture = tree_picture(tree, None)
    assert picture.description == "Rank paths: 0; 1; 0,0."
    import numpy as np

    assert "1 20%" in tree_picture(tree, np.array([1.0, 0.7, 0.2, 0.001])).description
    assert "0,0 <1%" in tree_picture(tree, np.array([1.0, 0.7, 0.2, 0.001])).description


def test_json_is_a_document_of_the_same_numbers(plan: treeopt.Plan) -> None:
    from treeopt.files.typed import json_text

    document = json.loads(json_text(report_of(plan, "none")))
    assert document["format"] == "treeopt.report/1"
    own = next(curve for curve in document["curves"] if curve["of"] == "plan")
    last = plan.buckets[-1]
    assert own["points"][-1]["option"]["tokens_per_s"]["value"] == pytest.approx(last.tokens_per_s.value, rel=1e-5)
