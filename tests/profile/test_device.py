"""What is found, and what state it is in."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treeopt.errors import InputError  # noqa: E402
from treeopt.profile import device  # noqa: E402
from treeopt.profile.gpu_state import gpu_state  # noqa: E402

GPU = "GPU-0a1b"
STATE = f"{GPU}, 560.1, 1200, 1980, 84, 700.1, 500.00, 700.00, 130000, Disabled, Enabled, 0x0000000000000024\n"
OTHER = "GPU-ffff, 560.1, 1980, 1980, 40, 80, 700.00, 700.00, 139000, [N/A], Enabled, 0x0000000000000001\n"


def smi(state: str, apps: str = "") -> object:
    return lambda query: state if "query-gpu" in query else apps


def test_a_gpu_that_torch_does_not_see_is_no_profile_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "_GPU_NODES", ("/dev/nowhere", "/dev/null"))
    with pytest.raises(InputError, match=r"has a GPU \(/dev/null\) that torch does not see") as refused:
        device.find_device(None)
    assert "--device cpu" in refused.value.hint
    assert device.find_device("cpu").kind == "cpu"  # asked for
    monkeypatch.setattr(device, "_GPU_NODES", ("/dev/nowhere",))
    assert device.find_device(None).kind == "cpu"


def test_the_inputs_take_a_sixth_of_what_is_free_in_powers_of_two() -> None:
    free = device.Device(
        kind="cuda", name="x", libraries="", memory_bytes=141 * 10**9, cache_bytes=1, free_bytes=139 * 10**9
    )
    assert free.input_bytes == pytest.approx(2**37 / 6)
    assert device.Device(kind="cpu", name="x", libraries="", memory_bytes=600, cache_bytes=1).input_bytes == 100


def test_throttling_sharing_and_caps_are_told() -> None:
    found = gpu_state("0a1b", ask=smi(OTHER + STATE, f"{GPU}, 4242, 3000\nGPU-ffff, 7, 1\n"))  # type: ignore[arg-type]
    assert found is not None
    assert found.state["driver_version"] == "560.1"
    assert list(found.notes()) == [
        "the GPU is throttled by its power cap and by heat: 1200 of 1980 MHz",
        "the GPU is shared: process 4242 holds 3000 MiB",
        "the GPU's power is capped at 500.00 W, by default 700.00 W",
    ]
    quiet = gpu_state("ffff", ask=smi(OTHER + STATE))  # type: ignore[arg-type]
    assert quiet is not None
    assert list(quiet.notes()) == []
    assert "mig.mode.current" not in quiet.state


def test_no_tool_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu_state("0a1b") is None
