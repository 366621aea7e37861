"""What is known of a GPU, and the tiles that it gets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from treeopt.errors import InputError  # noqa: E402
from treeopt.kernels import chip  # noqa: E402
from treeopt.kernels.chip import CHIPS, INTERPRETED, chip_of  # noqa: E402
from treeopt.kernels.config import TABLE, HeadShape, attention_config, attention_lines, resident, shared_bytes  # noqa: E402


def found_by(monkeypatch: pytest.MonkeyPatch, *, hip: str | None = None, **properties: object) -> chip.Chip:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))
    monkeypatch.setattr(torch.version, "hip", hip)
    return chip_of("cuda:1")


@pytest.mark.parametrize(
    ("capability", "products", "tma", "fp8"),
    [
        ((8, 0), "mma", False, False),
        ((8, 6), "mma", False, False),
        ((8, 7), "mma", False, False),
        ((8, 9), "mma", False, True),
        ((9, 0), "wgmma", True, True),
        ((10, 0), "tcgen05", True, True),
        ((10, 3), "tcgen05", True, True),
        ((11, 0), "mma", True, True),
        ((12, 0), "mma", True, True),
        ((12, 1), "mma", True, True),
    ],
)
def test_instructions_follow_from_the_compute_capability(
    capability: tuple[int, int], products: str, tma: bool, fp8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_by(monkeypatch, major=capability[0], minor=capability[1], multi_processor_count=7)
    assert (found.products, found.tma, found.fp8, found.processors) == (products, tma, fp8, 7)


def test_sizes_are_those_that_torch_reads_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of an H100 (MIG), at 3.35 TB/s: 5120 bits at 2.619 GHz, two transfers per clock, nine tenths of them."""
    found = found_by(
        monkeypatch,
        major=9,
        minor=0,
        multi_processor_count=60,
        shared_memory_per_block_optin=100_000,
        shared_memory_per_multiprocessor=110_000,
        regs_per_multiprocessor=32768,
        clock_rate=1_755_000,
        memory_clock_rate=2_619_000,
        memory_bus_width=5120,
    )
    assert (found.shared_block, found.shared_sm, found.registers_sm) == (100_000, 110_000, 32768)
    assert found.dram_bytes_per_clock == round(0.9 * 2 * 2.619e9 * 640 / 1.755e9)


def test_amd_by_its_name_and_off_a_gpu_a_small_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_by(monkeypatch, hip="6.4", gcnArchName="gfx950:sramecc+:xnack-", multi_processor_count=256)
    assert found == CHIPS["gfx950"]
    assert found_by(monkeypatch, hip="6.4", gcnArchName="gfx90a", multi_processor_count=304) == CHIPS["gfx942"]
    assert chip_of("cpu") == INTERPRETED


@pytest.mark.parametrize("name", CHIPS)
def test_every_line_that_a_chip_gets_fits_its_shared_memory(name: str) -> None:
    for shape, size in TABLE:
        if name == "gfx942" and ((size == 4 and shape.keys in (96, 192, 256)) or shape.keys == 576):
            with pytest.raises(InputError, match="KB of shared memory"):
                attention_lines(shape=shape, element_bytes=size, chip=CHIPS[name])
            continue
        for line in attention_lines(shape=shape, element_bytes=size, chip=CHIPS[name]):
            assert shared_bytes(line, shape=shape, element_bytes=size, chip=CHIPS[name]) <= CHIPS[name].shared_block
            assert 1 <= resident(line, shape=shape, element_bytes=size, chip=CHIPS[name]) <= line.programs


def test_a_chip_with_less_shared_memory_holds_fewer_programs() -> None:
    """70 KB a program: three on a Hopper of 228 KB, one on an L40S of 100 KB."""
    line = attention_config(shape=HeadShape(128, 128), element_bytes=2, rows=4)
    sizes = {"shape": HeadShape(128, 128), "element_bytes": 2}
    assert [resident(line, chip=CHIPS[name], **sizes) for name in ("sm_90", "sm_89")] == [3, 1]  # type: ignore[arg-type]


def test_pages_without_whole_tiles_get_another_line_where_page_numbers_take_registers() -> None:
    sizes = {"shape": HeadShape(128, 128), "element_bytes": 2, "rows": 256}
    assert attention_config(**sizes).block_n == 32  # type: ignore[arg-type]
    assert attention_config(**sizes, tma=False).block_n == 64  # type: ignore[arg-type]
