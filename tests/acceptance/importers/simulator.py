"""What engines count while they serve, simulated step by step: an independent second way to what importers read.

A run is a list of request-steps, each with how many tokens were drafted (0: the drafter found nothing) and accepted.
Every engine's format is written from that list by the engine's own rules of counting and rounding.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


class Step(NamedTuple):
    """One request in one step of the engine."""

    request: int
    interval: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Run:
    """A served run; the prefill of each request gives its first token, the last step may accept `cut` past its end."""

    steps: tuple[Step, ...]
    longest: int
    cut: int = 0

    @property
    def requests(self) -> int:
        return len({step.request for step in self.steps})

    @property
    def drafts(self) -> list[Step]:
        return [step for step in self.steps if step.drafted]

    def positions(self, steps: Sequence[Step]) -> list[int]:
        return [sum(step.accepted > i for step in steps) for i in range(self.longest)]

    @property
    def emitted(self) -> int:
        return self.requests + sum(1 + step.accepted for step in self.steps) - self.cut

    def of(self, **equal: int) -> list[Step]:
        return [s for s in self.steps if all(getattr(s, name) == value for name, value in equal.items())]

    @property
    def intervals(self) -> list[list[Step]]:
        return [self.of(interval=i) for i in sorted({step.interval for step in self.steps})]


def served(
    seed: int, *, steps: int, longest: int, misses: float = 0.0, tails: float = 0.0, schedule: Sequence[int] = ()
) -> Run:
    """A run of one server: `misses` of its steps draft nothing, `tails` fewer tokens; intervals follow the schedule."""
    rng = np.random.default_rng(seed)
    rates = np.sort(rng.uniform(0.2, 0.95, longest))[::-1]
    found = []
    for i in range(steps):
        interval = i * 8 // steps
        K = schedule[interval % len(schedule)] if schedule else longest
        drafted = 0 if rng.random() < misses else int(rng.integers(1, K + 1)) if rng.random() < tails else K
        accepted = next((d for d in range(drafted) if rng.random() > rates[d]), drafted)
        found.append(Step(request=i * 5 // steps, interval=interval, drafted=drafted, accepted=accepted))
    return Run(tuple(found), longest)


def cut_off(run: Run) -> Run:
    """The same where each text ends with the last step's first token."""
    last = {step.request: step for step in run.steps}
    return replace(run, cut=sum(step.accepted for step in last.values()))


def vllm_scrape(run: Run, engine: int = 0) -> str:
    labels = f'engine="{engine}",model_name="m"'
    drafts = run.drafts
    counters = {
        "vllm:spec_decode_num_drafts_total": len(drafts),
        "vllm:spec_decode_num_draft_tokens_total": sum(s.drafted for s in drafts),
        "vllm:spec_decode_num_accepted_tokens_total": sum(s.accepted for s in drafts),
        "vllm:generation_tokens_total": run.emitted,
        "vllm:time_to_first_token_seconds_count": run.requests,
        "vllm:inter_token_latency_seconds_count": len(run.steps),
    }
    lines = [f"# TYPE {name} counter\n{name}{{{labels}}} {float(value)}" for name, value in counters.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {float(n)}'
        for i, n in enumerate(run.positions(drafts))
    ]
    return "\n".join(lines) + "\n"


def vllm_log(run: Run) -> str:
    lines = []
    for steps in run.intervals:
        drafts = [s for s in steps if s.drafted]
        if not drafts:
            continue
        accepted, drafted = sum(s.accepted for s in drafts), sum(s.drafted for s in drafts)
        rates = ", ".join(f"{n / len(drafts):.3f}" for n in run.positions(drafts))
        lines.append(
            f"INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: {1 + accepted / len(drafts):.2f}, "
            f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 2.00 tokens/s, Accepted: {accepted} tokens, "
            f"Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, "
            f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
        )
    return "".join(f"{line}\n" for line in lines)


def vllm_requests(run: Run) -> str:
    lines = []
    for request in range(run.requests):
        steps = run.of(request=request)
        drafts = [s for s in steps if s.drafted]
        accepted = sum(s.accepted for s in steps)
        by_length = {
            str(K): np.bincount([s.accepted for s in steps if s.drafted == K], minlength=K + 1).tolist()
            for K in sorted({s.drafted for s in steps})
        }
        info = {
            "mean_acceptance_length": 1 + accepted / len(steps),
            "acceptance_histogram": np.bincount([s.accepted for s in steps], minlength=run.longest + 1).tolist(),
            "acceptance_histogram_by_draft_length": by_length,
            "num_spec_steps": len(steps),
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": sum(s.drafted for s in drafts),
            "num_spec_tokens": run.longest,
        }
        usage = {"completion_tokens": 1 + len(steps) + accepted}
        lines.append(json.dumps({"usage": usage, "metrics": {"speculative_decoding": info}}))
    return "\n".join(lines)


def sglang_requests(run: Run) -> str:
    infos = []
    for request in range(run.requests):
        steps = run.of(request=request)
        infos.append(
            {
                "completion_tokens": 1 + len(steps) + sum(s.accepted for s in steps),
                "spec_verify_ct": len(steps),
                "spec_num_correct_drafts": sum(s.accepted for s in steps),
                "spec_num_proposed_drafts": sum(s.drafted for s in steps),
                "spec_correct_drafts_histogram": np.bincount([s.accepted for s in steps]).tolist(),
            }
        )
    return json.dumps([{"meta_info": info} for info in infos])


def sglang_scrape(*runs: Run, names: Sequence[str] = ("m",)) -> str:
    """What SGLang counts of finished requests, one model per run; the lengths in force are gauges."""
    rows = []
    for name, run in zip(names, runs, strict=True):
        values = {
            "spec_verify_calls_total": len(run.steps),
            "generation_tokens_total": run.emitted,
            "num_requests_total": run.requests,
            "spec_num_steps": run.longest,
            "spec_num_draft_tokens": run.longest + 1,
        }
        rows += [f'sglang:{key}{{model_name="{name}"}} {float(value)}' for key, value in values.items()]
    return "".join(f"{row}\n" for row in rows)


def sglang_log(run: Run, running: int = 4) -> str:
    lines = []
    for steps in run.intervals:
        mean = 1 + sum(s.accepted for s in steps) / len(steps)
        rate = sum(s.accepted for s in steps) / sum(s.drafted for s in steps)
        lines.append(
            f"[2026-08-06 09:53:41 TP0] Decode batch, #running-req: {running}, #token: 1, token usage: 0.01, "
            f"accept len: {mean:.2f}, accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 1.0"
        )
    return "".join(f"{line}\n" for line in lines)


def llamacpp_log(run: Run, *, rates: bool, prefix: str = "") -> str:
    """Request by request, with the sums so far behind each; `rates` as of June 2026."""
    lines, asked, drafts = [], 0, list[Step]()
    for request in range(run.requests):
        steps = run.of(request=request)
        own = [s for s in steps if s.drafted]
        asked, drafts = asked + len(steps), drafts + own
        if rates and own:
            accepted, drafted = sum(s.accepted for s in own), sum(s.drafted for s in own)
            lines.append(
                f"I slot print_timing: id 1 | draft acceptance = {accepted / drafted:.5f} ( {accepted} accepted / "
                f"{drafted} generated), mean acceptance length = {1 + accepted / len(own):5.2f}, "
                f"acceptance rate per position = ({listed(run, own)})"
            )
        more = f", #mean acc len = 0, #acc rate/pos = ({listed(run, drafts)})" if rates and drafts else ""
        more = more.replace("len = 0", f"len = {1 + sum(s.accepted for s in drafts) / max(len(drafts), 1):.2f}")
        lines.append(
            f"I statistics draft-mtp: #calls(b,g,a) = {request + 1} {asked} {len(drafts)}, #gen drafts = 1, "
            f"#acc drafts = {sum(s.accepted > 0 for s in drafts)}, #gen tokens = {sum(s.drafted for s in drafts)}, "
            f"#acc tokens = {sum(s.accepted for s in drafts)}{more}, dur(b,g,a) = 0.016, 5.4, 2.1 ms"
        )
    return "".join(f"{prefix}{line}\n" for line in lines)


def listed(run: Run, drafts: Sequence[Step]) -> str:
    longest = max(s.drafted for s in drafts)
    return ", ".join(f"{n / len(drafts):.3f}" for n in run.positions(drafts)[:longest])


def trtllm_stats(run: Run) -> str:
    """Iterations of one batch each: of `run.requests` requests, those with drafts are told apart."""
    rows = []
    for start in range(0, len(run.steps), run.requests):
        steps = run.steps[start : start + run.requests]
        drafts = [s for s in steps if s.drafted]
        accepted = sum(s.accepted for s in steps)
        spec = {
            "numDraftTokens": sum(s.drafted for s in steps),
            "numAcceptedTokens": accepted,
            "numRequestsWithDraftTokens": len(drafts),
            "acceptanceLength": 1 + accepted / max(len(drafts), 1),
        }
        rows.append({"iter": start, "inflightBatchingStats": {"numGenRequests": len(steps)}, "specDecodingStats": spec})
    return json.dumps(rows)


def trtllm_scrape(run: Run) -> str:
    """Counters by position, of drafts alone."""
    drafts, name = run.drafts, "trtllm_spec_decode_"
    counters = {
        "num_draft_tokens": sum(s.drafted for s in drafts),
        "num_accepted_tokens": sum(s.accepted for s in drafts),
    }
    rows = [f'{name}{key}_total{{model_name="m"}} {float(n)}' for key, n in counters.items()]
    for i in range(run.longest):
        at = f'model_name="m",token_position="{i}"'
        rows.append(f"{name}drafted_tokens_total{{{at}}} {float(sum(s.drafted > i for s in drafts))}")
        rows.append(f"{name}accepted_tokens_total{{{at}}} {float(sum(s.accepted > i for s in drafts))}")
    return "".join(f"{row}\n" for row in rows)
