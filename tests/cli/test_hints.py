"""A hint names no option as if the command had it that does not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from treeopt.cli import app
from treeopt.cli.hints import commands_of, with_owners

ROOT = Path(__file__).resolve().parents[2] / "treeopt"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Options of engines and of their benchmarks.
OTHERS = {
    *("--enable-metrics", "--max-num-seqs", "--stream-interval", "--max-concurrency"),
    *("--speculative-eagle-topk",),
}
COMMANDS = dict(commands_of(app))
FLAGS = {path: {flag for p in command.params for flag in p.opts} for path, command in COMMANDS.items()}


def hints() -> list[str]:
    """The literal text of every hint that names an option."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                parts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
                text = "".join(part for part in parts if isinstance(part, str))
                found += [text] if OPTION.search(text) else []
    return found


@pytest.mark.parametrize("hint", hints())
def test_every_option_of_a_hint_is_one_of_a_command(hint: str) -> None:
    unknown = set(OPTION.findall(hint)) - set().union(*FLAGS.values()) - OTHERS
    assert not unknown


@pytest.mark.parametrize("path", COMMANDS)
def test_whatever_command_runs_an_option_that_it_lacks_is_said_to_be_anothers(path: str) -> None:
    for hint in hints():
        said = with_owners(hint, path.split(), app)
        lacking = set(OPTION.findall(re.sub(r"treeopt [a-z]+[^,;:()`]*", "", hint))) - FLAGS[path] - OTHERS
        assert all(any(option in FLAGS[owner] for owner in _owners(said)) for option in lacking), said


def _owners(said: str) -> list[str]:
    named = re.findall(r"an option of treeopt ([a-z, ]+)", said)
    return [owner for part in named for owner in part.split(", ")]


def test_commands_that_are_named_in_a_hint_have_their_options() -> None:
    for hint in hints():
        for path, rest in re.findall(r"treeopt ([a-z]+(?: (?:import|fit|table|collect)\b)?)([^,;()`]*)", hint):
            assert set(OPTION.findall(rest)) <= FLAGS[path], hint


def test_a_hint_is_told_as_it_is_where_the_command_has_the_option() -> None:
    assert with_owners("add --batch B", ["explain", "plan.yaml"], app) == "add --batch B"
    assert with_owners("run vllm --max-num-seqs 8", ["explain"], app) == "run vllm --max-num-seqs 8"
    said = with_owners("search with --max-depth 3", ["export", "plan.yaml", "--engine", "medusa"], app)
    assert said == "search with --max-depth 3 (an option of treeopt search)"
