"""llama.cpp's server log: per finished request, accepted of generated draft tokens and the rate per position.

Format: ggml-org/llama.cpp, tools/server/server-context.cpp print_timings, common/speculative.cpp print_stats (PR 24536,
June 2026). Rates are of all verified drafts. `statistics` lines hold the sums over all requests so far, so they count
only where requests have no rates of their own, and then only the last one of each drafter.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from treeopt.acceptance.conversions import drafts_from_survival
from treeopt.acceptance.importers.chains import ChainCounts, Chains, from_rates
from treeopt.acceptance.importers.checks import check_draft_tokens, check_mean
from treeopt.acceptance.importers.reading import Job, Reading
from treeopt.acceptance.profile import Conditions
from treeopt.files.evidence_lines import Line, require

_ROUNDING: Final = 0.0005  # three decimals
_REQUEST: Final = re.compile(r"draft acceptance = .{0,99}\(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)")
_STATISTICS: Final = re.compile(
    r"statistics\s+([\w.+-]{1,40}): #calls\(b,g,a\) =\s*\d{1,15}\s+\d{1,15}\s+(\d{1,15}),.{0,99}"
    r"#gen tokens =\s*(\d{1,15}), #acc tokens =\s*(\d{1,15}),"
)


def read_llamacpp(job: Job) -> Reading:
    """Position evidence, requests added up; drafts that stopped early count as drafts of the longest length."""
    requests = ChainCounts()
    last: dict[str, tuple[Line, int]] = {}
    for line in job.file.lines():
        if chains := _request_chains(line):
            requests.add(chains)
        elif found := _STATISTICS.search(line.text):
            name, drafts = found[1], int(found[2])
            if name in last and drafts < last[name][1]:
                raise line.error(
                    f"the drafts of {name} fell from {last[name][1]} to {drafts}",
                    hint="two servers or slots in one log: give the lines of one",
                )
            last[name] = (line, drafts)
    counts = requests if len(requests) else _from_statistics(last)
    require(len(counts) > 0, job.file, "`draft acceptance` or `statistics` line with a rate per position")
    drafter = next(iter(last)) if len(last) == 1 else None
    return counts.as_longest().reading(job, Conditions(drafter=drafter, sampling="draft-starts"))


def _request_chains(line: Line) -> Chains | None:
    found = _REQUEST.search(line.text)
    rates = [r.value for r in line.numbers_after("acceptance rate per position =")]
    if found is None or not rates:
        return None
    chains = _chains(line, rates, accepted=int(found[1]), generated=int(found[2]), drafts=None)
    _check_mean(line, "mean acceptance length =", chains)
    return chains


def _from_statistics(last: dict[str, tuple[Line, int]]) -> ChainCounts:
    counts = ChainCounts()
    for line, drafts in last.values():
        found, rates = _STATISTICS.search(line.text), [r.value for r in line.numbers_after("#acc rate/pos =")]
        if found is not None and rates and drafts:
            chains = _chains(line, rates, accepted=int(found[4]), generated=int(found[3]), drafts=drafts)
            _check_mean(line, "#mean acc len =", chains)
            counts.add(chains)
    return counts


def _chains(line: Line, rates: list[float], *, accepted: int, generated: int, drafts: int | None) -> Chains:
    # Only positions that were seen are listed: drafts that are longer on average had more of them.
    likely = drafts or drafts_from_survival(np.array(rates), accepted)
    listed = likely * len(rates) * (1.0 if drafts else 1.0 + _ROUNDING * len(rates))
    if likely and generated > listed + 1:
        K = -(-generated // likely)
        check_draft_tokens(line, K)
        rates = rates + [0.0] * (K - len(rates))
    return from_rates(line, rates, drafts=drafts, drafted=generated, accepted=accepted, rounding=_ROUNDING)


def _check_mean(line: Line, label: str, chains: Chains) -> None:
    mean = line.number_after(label)
    if mean is not None and chains.drafts:
        check_mean(line, stated=mean, computed=chains.mean_accepted_length, source="the counts beside it")
