"""What the docs tell people to type works on files of the project, and what is not run says why."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from documented import PAGES, REASONS, ROOT, Block, blocks, commands, inline, lines
from golden.running import INPUTS, TRACE, call, keep_up

from treeopt.cli import app
from treeopt.engines.registry import find_engine

# What the pages call the user's files, and what stands for them.
FILES = {
    **{name: INPUTS / name for name in ("plan.yaml", "choices.json", "config.json", "steps.csv", "counts.yaml")},
    **dict.fromkeys(("trace.npz", "my-trace.npz"), TRACE),
    "before.prom": INPUTS / "vllm-before.prom",
    "after.prom": INPUTS / "vllm-after.prom",
    "metrics.prom": INPUTS / "vllm-after.prom",
    "server.log": INPUTS / "sglang.log",
    "llama-server.log": INPUTS / "llamacpp.log",
    "stats.json": INPUTS / "trtllm_iteration_stats.json",
    "server_command.txt": INPUTS / "sglang-flags.txt",
    "vllm_config.json": INPUTS / "vllm-config.json",
}
OWN = {"docs/runtime.md": {"plan.yaml": INPUTS / "chains.yaml", "server.log": INPUTS / "vllm.log"}}
# Pages whose blocks a user pastes one after the other.
PYTHON = ("README.md", "docs/start-own-engine.md")
STARTS = {
    "docs/start-vllm.md": "vllm",
    "docs/start-sglang.md": "sglang",
    "docs/start-tensorrt-llm.md": "tensorrt-llm",
    "docs/start-llamacpp.md": "llama.cpp",
}


def shells(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.kind == "sh"]


def with_commands() -> list[str]:
    return [p for p in PAGES if any(list(commands(b)) for b in shells(p) if b.why is None)]


@pytest.mark.parametrize("page", with_commands())
def test_what_a_page_tells_to_type_works(page: str, tmp_path: Path) -> None:
    for name, source in (FILES | OWN.get(page, {})).items():
        shutil.copyfile(source, tmp_path / name)
    keep_up(tmp_path)
    for block in blocks(page):
        if block.kind == "sh" and block.why is None:
            for arguments in commands(block):
                if arguments[0] == "verify" and find_spec("torch") is None:
                    continue
                code, out, err = call(tuple(arguments), tmp_path)
                allowed = (0, 3) if arguments[0] == "check" else (0,)
                assert code in allowed, f"treeopt {' '.join(arguments)}\n{out[-2000:]}{err}"
        if block.kind == "python" and page in PYTHON:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path)
                exec(compile(block.text, page, "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_not_run_says_why(page: str) -> None:
    for block in blocks(page):
        if block.why is not None:
            assert block.why in REASONS
        elif "sh" not in block.kind:
            typed = [line for line in lines(block.text) if line.startswith("treeopt ")]
            assert not typed, f"{page}: put these into a sh block, so that they are run: {typed}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_name_what_there_is(page: str) -> None:
    for text in inline(page):
        words = text.split()
        command: click.Command = app
        while words and isinstance(command, click.Group):
            if words[0] in ("...", "COMMAND"):
                break
            found = command.get_command(click.Context(command), words[0])
            if found is None:
                break
            command = found
            words.pop(0)
        known = {flag for parameter in command.params for flag in parameter.opts} | {"--help", "-h", "--version"}
        flags = [word.partition("=")[0].strip(",;:") for word in words if word.startswith("--")]
        assert command is not app or flags or words == [], f"{page}: treeopt {text}"
        assert [flag for flag in flags if flag not in known] == [], f"{page}: treeopt {text}"


@pytest.mark.parametrize("page", STARTS)
def test_a_start_line_says_what_checked_it(page: str) -> None:
    said = re.findall(r"^Checked by: ([\w ]+)\.", (ROOT / page).read_text(), re.MULTILINE)
    assert said == [find_engine(STARTS[page]).engine.checked_by]


@pytest.mark.parametrize("page", STARTS)
def test_a_start_line_is_what_export_prints(page: str, tmp_path: Path) -> None:
    """Its program and its options, whatever the numbers."""
    shown = next(line for b in shells(page) if b.why == "needs an engine" for line in lines(b.text))
    plan = {"vllm": "chains.yaml", "sglang": "triples.yaml"}.get(STARTS[page], "chains.yaml")
    shutil.copyfile(INPUTS / plan, tmp_path / "plan.yaml")
    method = {"llama.cpp": ("--method", "draft-simple", "--batch", "8")}.get(STARTS[page], ())
    _, _, err = call(("export", "plan.yaml", "--engine", STARTS[page], *method, "--out", "written"), tmp_path)
    start = next(line for line in err.splitlines() if line.startswith("start: ")).removeprefix("start: ")
    assert shown.split()[0] == start.split()[0]
    flags = set(re.findall(r"(?<= )--?[a-z][\w-]*", shown))
    assert flags <= set(re.findall(r"(?<= )--?[a-z][\w-]*", start)), start
