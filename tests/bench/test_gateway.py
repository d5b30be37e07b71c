"""The gateway's part of the benchmark runs, and a call that waits leaves little behind."""

import pytest

from bench import gateway


@pytest.mark.timeout(180)
def test_a_round_through_the_gateway_is_measured_beside_one_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway, "WAITING", 100)
    costs, memory = gateway.measure("serve", seconds=0.1, repeats=1)
    assert list(costs) == ["plain", "mrtr", "wizard"]
    assert all(min(cost) > 0 for cost in costs.values())
    name, start, _, waiting = memory
    assert name == "antiphon serve"
    assert float(start) > 0
    assert float(waiting) < 64
