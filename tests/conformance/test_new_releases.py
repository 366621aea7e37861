from __future__ import annotations

import pytest
from conformance.new_releases import newer

PRINTED = "vllm (0.34.1)\nAvailable versions: 0.34.1, 0.34.1rc1, 0.33.0.post1, 0.100.0, 0.34.0, 0.33.0, 0.9.9\n"


def test_newer_releases_are_found_in_order() -> None:
    assert newer("0.33.0", PRINTED) == ["0.34.0", "0.34.1", "0.100.0"]
    assert newer("0.100.0", PRINTED) == []
    with pytest.raises(ValueError, match="no list"):
        newer("0.33.0", "ERROR: no matching distribution")
