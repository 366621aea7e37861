"""Measured data that scripts here judge by and the project does not hold: a folder named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

BESIDE: Final = Path(__file__).resolve().parents[2] / "shared" / "data"
GEMM: Final = """\
gemm/: kernel times of NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), its Parquet tables under systems/data
written as aic_gemm_bf16.csv, aic_gemm_fp8.csv, aic_decode_attention.csv, aic_moe.csv and aic_allreduce.csv, with
columns gpu and engine in front (docs/cost-fits.md, "Rows that are read", names the others)"""
STEPS: Final = """\
measured/vllm_step_ms_by_batch_k.csv: columns batch,k,step_ms with the 30 step times that the
public fork of vLLM PR #32374 states for Llama-3.1-8B with EAGLE (no licence is stated for them; they are facts)"""
PUBLISHED: Final = f"""\
{STEPS}
measured/acceptance_by_position.csv, vllm_al_tpot_bs1.csv, sglang_autospec_tok_s.csv, specbundle_sglang.csv and
speedup_by_batch.csv, inputs/report_numbers.json and specforge_bench_eagle3_results.json: numbers of the public reports
that docs/cost-steps.md names section by section (SpecBundle: SpecForge, MIT; tests/published.py reads their columns)"""


def data_folder(needed: str, *files: str) -> Path:
    """The FOLDER of the command line, without one `../shared/data`; ends with `needed` where a file is missing."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else BESIDE
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        sys.exit(
            f"{folder / missing[0]} is missing. The project does not hold this data; `python {sys.argv[0]} FOLDER` "
            f"reads it from a folder that holds\n{needed}"
        )
    return folder
