from __future__ import annotations

import pytest
from render.test_text import printed

pytest.importorskip("torch", reason="verification needs torch")

from treeopt.render.verify import check_table
from treeopt.verify.report import Check, TreeReport, VerificationReport


def report(where: str, *checks: Check) -> TreeReport:
    return TreeReport(where=where, nodes=4, depth=2, checks=checks)


def found() -> VerificationReport:
    right = Check(name="a long name of a check", worst=2e-14, allowed=1e-13, cases=1234, where="node 3, path [0, 0]")
    wrong = Check(name="mask", worst=7, allowed=0, cases=10, where="node 36, path [1, 0, 0, 0, 0]")
    none = Check(name="mask", worst=0, allowed=0, cases=20, where="")
    return VerificationReport(
        rule="greedy",
        exact=True,
        model="toy",
        dtype="float64",
        device="cpu",
        attention="torch",
        libraries=(),
        context=16,
        trees=(report("batch 1", right, none), report("batch 2-8", right, wrong)),
    )


def test_the_worst_place_goes_below_where_it_does_not_fit() -> None:
    numbers = [
        "check                   cases  worst error  allowed  result",
        "a long name of a check  2,468      2.0e-14  1.0e-13  ok",
        "mask                       30            7        0  FAILED in 1",
    ]
    places = [
        "worst at",
        "batch 1: node 3, path [0, 0]",
        "batch 2-8: node 36, path [1, 0, 0, 0, 0]",
    ]
    names = ("check", "a long name of a check", "mask")
    below = [f"{name:24}{place}" for name, place in zip(names, places, strict=True)]
    assert printed(check_table(found(), 80), 80) == [*numbers, "", *below]
    wide = [f"{line:66}{place}" for line, place in zip(numbers, places, strict=True)]
    assert printed(check_table(found(), 120), 120) == wide
