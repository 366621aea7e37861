"""How often a check is wrong, on made-up deployments."""

from __future__ import annotations

import numpy as np
from check.simulated import expected, measured, planned
from scipy.optimize import brentq

from treeopt.check.check import check_plan
from treeopt.check.report import FindingKind


def test_false_alarms_in_stable_deployments() -> None:
    """At most 1 % of 200, for many drafts and for few."""
    for drafts in (500, 2_000, 20_000):
        rng = np.random.default_rng(drafts)
        alarms = 0
        for _ in range(200):
            rate = rng.uniform(0.4, 0.9)
            alarms += check_plan(planned(rng, rate), measured(rng, rate, drafts)).drifted
        assert alarms <= 2, drafts


def test_a_drop_of_a_tenth_is_found() -> None:
    """At least 95 % of 200, at 20,000 drafts."""
    rng = np.random.default_rng(11)
    found = 0
    for _ in range(200):
        rate = rng.uniform(0.5, 0.9)
        worse = float(brentq(lambda r: expected(r) - 0.9 * expected(rate), 0.01, rate))  # noqa: B023
        report = check_plan(planned(rng, rate), measured(rng, worse, 20_000))
        found += [finding.kind for finding in report.findings] == [FindingKind.ACCEPTANCE_FELL]
    assert found >= 190


def test_what_it_says_it_would_show_it_shows() -> None:
    """A change of the stated size is found with 95 % probability, if drafts are as alike as is assumed."""
    rng = np.random.default_rng(12)
    tried = found = 0
    for _ in range(300):
        plan = planned(rng, 0.7, requests=1000)
        report = check_plan(plan, measured(rng, 0.7, 10_000))
        detectable = report.comparisons[0].change.detectable
        assert detectable is not None
        target = (1.0 - detectable) * expected(0.7)
        worse = float(brentq(lambda r: expected(r) - target, 0.01, 0.9))  # noqa: B023
        tried += 1
        found += check_plan(plan, measured(rng, worse, 10_000)).drifted
    assert found / tried >= 0.9
