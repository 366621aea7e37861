from __future__ import annotations

import pytest

from treeopt.errors import FileFormatError
from treeopt.measure.counters import Counters, read_counters

# Lines of a vLLM 0.32.0 scrape, values invented; two engines, which are added.
SCRAPE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 0.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 400.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 4.0
vllm:num_requests_running{engine="0",model_name="m"} 3.0
"""


def test_a_scrape() -> None:
    found = read_counters(SCRAPE)
    assert found == Counters(
        drafts=120.0,
        drafted=300.0,
        accepted=150.0,
        generated=1500.0,
        steps=400.0,
        steps_s=4.0,
        running=3.0,
        by_position=(80.0, 70.0, 0.0),
    )
    assert found.drafted_per_draft == 2.5


def test_a_difference_counts_and_keeps_what_is_running() -> None:
    before = Counters(drafts=100.0, generated=500.0, running=9.0, by_position=(30.0, 70.0))
    change = read_counters(SCRAPE).since(before)
    assert (change.drafts, change.generated, change.running) == (20.0, 1000.0, 3.0)
    assert change.by_position == (50.0, 0.0, 0.0)


def test_a_series_that_begins_later_counts_from_zero() -> None:
    assert read_counters(SCRAPE).since(Counters()).drafts == 120.0


@pytest.mark.parametrize("text", ["", "<html>", "vllm:generation_tokens_total"])
def test_what_is_no_scrape_counts_nothing(text: str) -> None:
    assert read_counters(text) == Counters()
    assert read_counters(text).drafted_per_draft is None


def test_a_counter_that_is_none_is_named_with_its_line() -> None:
    with pytest.raises(FileFormatError, match=r"/metrics:2: not a Prometheus sample"):
        read_counters('# of a server\nvllm:spec_decode_num_drafts_total{"')
