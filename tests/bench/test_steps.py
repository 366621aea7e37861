"""What a bench says of fitting its steps; that the command works is tested in `cli/test_bench.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="decoding needs torch")

from bench.world import cells_of

from treeopt.bench.steps import fit_context, fit_note, steps_csv
from treeopt.planner.inputs import Inputs, load_inputs
from treeopt.planner.names import Names


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return load_inputs(Names(ranks="example"))


def note(inputs: Inputs, folder: Path, batches: tuple[int, ...], chains: tuple[int, ...], scale: float = 1.5) -> str:
    path = folder / "my steps.csv"
    cells = cells_of(inputs.cost, batches, chains, scale=scale)
    path.write_text(steps_csv(cells))
    return fit_note(cells, inputs, path)


@pytest.mark.parametrize(
    ("batches", "chains", "words"),
    [
        ((1, 2), (0, 2, 4), ("6 step times at 2", "8 at 2: run 1 more of --batches, or 1 more of --with")),
        ((1, 2), (0,), ("2 step times at 2", "run 6 more of --batches, or 3 more of --with")),
        ((4,), (0, 1, 2, 3, 4, 5, 6, 7), ("8 step times at 1", "run 1 more of --batches")),
        ((4,), (0, 1, 2), ("3 step times at 1", "run 2 more of --batches")),
    ],
)
def test_too_few_steps_say_how_many_more(
    inputs: Inputs, tmp_path: Path, batches: tuple[int, ...], chains: tuple[int, ...], words: tuple[str, ...]
) -> None:
    said = note(inputs, tmp_path, batches, chains)
    assert all(part in said for part in words), said
    assert said.endswith(words[-1]) or "(chain:K of other lengths)" in said
    more = note(inputs, tmp_path, (*batches, *(100 + i for i in range(6))), (*chains, 8, 9, 10))
    assert "fit them with" in more


def test_the_command_has_the_plan_s_inputs_and_replaces_nothing(inputs: Inputs, tmp_path: Path) -> None:
    (tmp_path / "my steps-hardware.yaml").touch()
    said = note(replace(inputs, names=replace(inputs.names, capture_tokens=(8, 512))), tmp_path, (1, 2, 4), (0, 2, 4))
    context = fit_context(cells_of(inputs.cost, (1,), (0,)))
    assert said == (
        f"fit them with treeopt profile fit --steps '{tmp_path}/my steps.csv' --hardware h100-sxm-vllm-0.24 "
        f"--model llama-3.1-8b --drafter eagle --context {context} --capture-sizes 8,512 "
        f"--out '{tmp_path}/my steps-hardware-2.yaml'"
    )


def test_steps_of_another_machine_are_no_command(inputs: Inputs, tmp_path: Path) -> None:
    said = note(inputs, tmp_path, (1, 2, 4), (0, 2, 4), scale=1000.0)
    assert "cannot fit them to the plan's hardware h100-sxm-vllm-0.24 and model llama-3.1-8b" in said
    assert "fit them with" not in said
