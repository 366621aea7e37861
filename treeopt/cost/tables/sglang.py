"""SGLang's DSPARK tables, `--speculative-dspark-sps-table-path`: steps per second by tokens, or seconds as a sum.

    {"sample_batch_tokens": [...], "sample_steps_per_sec": [...], "max_batch_tokens": n}
    {"bias_seconds": s, "bs_probes": [...], "alpha_seconds": [...], "m_probes": [...], "theta_seconds": [...]}

Tokens are requests x tokens that each verifies, the root included. The engine takes the first form at the next lower
sample, and the second linearly and clamped at its ends; here both are linear, and end where their samples do.
Format: sgl-project/sglang 0.5.23, srt/speculative/dspark_components/dspark_sps.py.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from treeopt.cost.step_cost import StepCost
from treeopt.cost.step_table import AdditiveTable, TokenTable, known_times
from treeopt.errors import InputError
from treeopt.files.documents import Field

SAMPLES_KEY: Final = "sample_batch_tokens"
ADDITIVE_KEY: Final = "bias_seconds"
_MAX_STEP_S: Final = 100.0
_MIN_STEP_S: Final = 1e-6


def read_token_table(root: Field) -> TokenTable:
    """The table of steps per second.

    Raises:
        FileFormatError: a key that is missing or unknown, samples that do not rise, or a rate that is no measurement.
    """
    root.only(SAMPLES_KEY, "sample_steps_per_sec", "max_batch_tokens")
    tokens = _probes(root.get(SAMPLES_KEY))
    rates = _values(root.get("sample_steps_per_sec"), len(tokens), low=1.0 / _MAX_STEP_S, high=1.0 / _MIN_STEP_S)
    root.get("max_batch_tokens").integer(low=tokens[-1])
    return TokenTable(tokens=tokens, step_s=tuple(1.0 / rate for rate in rates))


def read_additive_table(root: Field) -> AdditiveTable:
    """The additive table; raises as `read_token_table`."""
    root.only(ADDITIVE_KEY, "bs_probes", "alpha_seconds", "m_probes", "theta_seconds")
    batches, tokens = _probes(root.get("bs_probes")), _probes(root.get("m_probes"))
    bias = root.get(ADDITIVE_KEY)
    if not bias.number(high=_MAX_STEP_S) > 0:
        raise bias.error(f"{bias.number():g} s", hint="SGLang takes a bias above 0 only")
    table = AdditiveTable(
        bias_s=bias.number(),
        batches=batches,
        batch_s=_values(root.get("alpha_seconds"), len(batches), low=-_MAX_STEP_S, high=_MAX_STEP_S),
        tokens=tokens,
        token_s=_values(root.get("theta_seconds"), len(tokens), low=-_MAX_STEP_S, high=_MAX_STEP_S),
    )
    if table.bias_s + min(table.batch_s) + min(table.token_s) <= 0:
        raise bias.error("the smallest sum is not above 0 s", hint="profile again: a step takes time")
    return table


def token_table_json(table: TokenTable) -> str:
    """The file that SGLang loads."""
    document = {
        SAMPLES_KEY: list(table.tokens),
        "sample_steps_per_sec": [1.0 / seconds for seconds in table.step_s],
        "max_batch_tokens": table.tokens[-1],
    }
    return json.dumps(document) + "\n"


def additive_table_json(table: AdditiveTable) -> str:
    """The file that SGLang loads."""
    document = {
        ADDITIVE_KEY: table.bias_s,
        "bs_probes": list(table.batches),
        "alpha_seconds": list(table.batch_s),
        "m_probes": list(table.tokens),
        "theta_seconds": list(table.token_s),
    }
    return json.dumps(document) + "\n"


def token_table_of(cost: StepCost, *, batches: Sequence[int], nodes: int, context: int) -> TokenTable:
    """A table of the steps of chains of `nodes` tokens at each batch size, as SGLang's profiler makes it.

    Raises:
        InputError: a step that the cost model has no time for.
    """
    sizes = np.array(sorted(set(batches)), dtype=np.int64)
    step_s = known_times(cost, sizes, np.array([nodes]), context)[:, 0]
    return TokenTable(tokens=tuple((sizes * nodes).tolist()), step_s=tuple(step_s.tolist()))


class Additive(NamedTuple):
    """An additive table, and the largest share by which it misses a step that it was made from."""

    table: AdditiveTable
    max_error: float


def additive_table_of(cost: StepCost, *, batches: Sequence[int], nodes: Sequence[int], context: int) -> Additive:
    """The additive table nearest to the chains of `nodes` tokens at each batch size, by least squares of the share.

    Raises:
        InputError: fewer than two batch sizes or sizes of chains, or a step that the cost model has no time for.
    """
    sizes, widths = (np.array(sorted(set(values)), dtype=np.int64) for values in (batches, nodes))
    if len(sizes) < 2 or len(widths) < 2:
        raise InputError("an additive table needs two batch sizes and two sizes of chains", hint="list more of them")
    step_s = known_times(cost, sizes, widths, context).ravel()
    tokens, at = np.unique(sizes[:, None] * widths, return_inverse=True)
    of_batch = np.repeat(np.arange(len(sizes)), len(widths))
    # The bias is the step of the first batch size and token count; their own parts are 0.
    charges = np.zeros((len(step_s), 1 + len(sizes) + len(tokens)))
    rows = np.arange(len(step_s))
    charges[:, 0] = charges[rows, 1 + of_batch] = charges[rows, 1 + len(sizes) + at.ravel()] = 1.0
    charges = np.delete(charges, [1, 1 + len(sizes)], axis=1)
    values = np.linalg.lstsq(charges / step_s[:, None], np.ones(len(step_s)), rcond=None)[0]
    table = AdditiveTable(
        bias_s=float(values[0]),
        batches=tuple(sizes.tolist()),
        batch_s=(0.0, *values[1 : len(sizes)].tolist()),
        tokens=tuple(tokens.tolist()),
        token_s=(0.0, *values[len(sizes) :].tolist()),
    )
    return Additive(table, float(np.abs(charges @ values / step_s - 1.0).max()))


def _probes(field: Field) -> tuple[int, ...]:
    probes = [item.integer(low=1) for item in field.items()]
    if not probes or any(b <= a for a, b in itertools.pairwise(probes)):
        raise field.error("the samples do not rise", hint="list at least one, each once, smallest first")
    return tuple(probes)


def _values(field: Field, size: int, *, low: float, high: float) -> tuple[float, ...]:
    values = tuple(item.number(low=low, high=high) for item in field.items())
    if len(values) != size:
        raise field.error(f"{len(values)} values for {size} samples", hint="give one per sample")
    return values
