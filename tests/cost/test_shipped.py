"""The shipped profiles: all are there, all load, and none leaves a number without a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from treeopt.cost import load_hardware, load_model

PROFILES = Path(__file__).parents[2] / "profiles"
MODELS = sorted((PROFILES / "models").glob("*.yaml"))
HARDWARE = sorted((PROFILES / "hardware").glob("*.yaml"))


def test_nothing_is_missing() -> None:
    models = {"llama-3.1-8b", "llama-3.2-1b", "llama-3.3-70b", "qwen3-0.6b", "qwen3-8b", "qwen3-32b"}
    models |= {"qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "glm-4.5-air", "smollm2-135m"}
    assert models <= {path.stem for path in MODELS}
    assert {"h100-sxm", "h200-sxm", "a100-sxm", "l40s", "b200"} <= {path.stem for path in HARDWARE}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_model_loads_under_its_name_and_names_its_config(path: Path) -> None:
    model = load_model(path)
    assert model.name == path.stem
    assert model.source.startswith("config.json of ")


@pytest.mark.parametrize("path", HARDWARE, ids=lambda path: path.stem)
def test_hardware_loads_under_its_name_with_a_source_for_every_number(path: Path) -> None:
    hardware = load_hardware(path)
    assert hardware.name == path.stem
    assert set(hardware.sources) == {
        "bandwidth_bytes_per_s",
        "peak_flops",
        "memory_bytes",
        "link_bandwidth_bytes_per_s",
        "launch_s",
    }


def test_the_launch_time_says_whether_it_was_fitted_or_assumed() -> None:
    origins = {path.stem: load_hardware(path).sources["launch_s"].split(":")[0] for path in HARDWARE}
    measured = {path.stem for path in HARDWARE if load_hardware(path).fits}
    assert {origins[name] for name in measured} == {"fitted"}
    assert set(origins.values()) == {"fitted", "assumed"}
