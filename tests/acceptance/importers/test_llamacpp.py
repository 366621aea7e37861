from __future__ import annotations

import pytest


def request(accepted: int, generated: int, mean: float, rates: str) -> str:
    return (
        f"0.06.896.015 I slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  {accepted} accepted /   "
        f"{generated} generated), mean acceptance length =  {mean}, acceptance rate per position = ({rates})\n"
    )


def statistics(drafts: int, generated: int, accepted: int, mean: float, rates: str, name: str = "draft-mtp") -> str:
    return (
        f"0.06.896.057 I statistics     {name}: #calls(b,g,a) =    1     {drafts}     {drafts}, #gen drafts =     "
        f"{drafts}, #acc drafts =    70, #gen tokens =    {generated}, #acc tokens =   {accepted}, "
        f"#mean acc len = {mean}, #acc rate/pos = ({rates}), dur(b,g,a) = 0.005, 325.555, 0.114 ms\n"
    )


THREE = request(167, 259, 2.92, "0.805, 0.632, 0.483")


def test_requests_add_up_and_statistics_do_not_count_twice(read) -> None:
    found = read(THREE + statistics(87, 259, 167, 2.92, "0.805, 0.632, 0.483") + THREE)
    evidence = found.profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (174, [140.0, 110.0, 84.0])
    assert found.profiles[0].conditions.drafter == "draft-mtp"
    assert "4 of 522 draft tokens" in found.warnings[0]


def test_a_request_that_saw_fewer_positions_counts_at_full_length(read) -> None:
    evidence = read(THREE + request(3, 10, 1.6, "0.400, 0.200")).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (92, [72.0, 56.0, 42.0])


def test_positions_that_were_drafted_but_never_accepted_are_there(read) -> None:
    evidence = read(request(5, 30, 1.5, "0.500")).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (10, [5.0, 0.0, 0.0])


def test_without_rates_per_request_the_last_statistics_count(read, refusal) -> None:
    first = statistics(2, 4, 4, 3.0, "1.000, 1.000")
    second = statistics(206, 411, 311, 2.51, "0.840, 0.670")
    old = "slot print_timing: draft acceptance = 0.75430 (  307 accepted /   407 generated), mean len =  2.50\n"
    evidence = read(first + old + second).profiles[0].evidence
    assert (evidence.drafts, evidence.accepted.tolist()) == (206, [173.0, 138.0])
    again = read(second + first)
    assert again.sources[0].tally.drafts == 208
    assert "the counters started again 1 times" in again.warnings[-1]
    assert "a counter fell from 206 and is at 206 again one line later" in str(refusal(second + first + second))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (request(167, 259, 2.92, "0.805, 0.632, 0.683"), "rises from 0.632 at position 1 to 0.683"),
        (request(267, 259, 2.92, "0.805, 0.632, 0.483"), "267 draft tokens accepted, but only 259 drafted"),
        (request(167, 259, 3.92, "0.805, 0.632, 0.483"), "mean accepted length 3.92 stated"),
        (request(167, 10**12, 2.92, "0.805, 0.632, 0.483"), "draft tokens per step"),
        (request(90, 100, 4.5, "1.000, 0.900"), "mean accepted length 4.5 stated"),
    ],
)
def test_contradicting_lines_are_reported(refusal, text: str, words: str) -> None:
    error = refusal(THREE + text)
    assert "sample.txt:2: " in str(error)
    assert words in str(error)
