"""A tenth of `make fuzz`: whatever comes, nothing fails, hangs, grows or happens unapproved."""

import pytest

from tests.fuzz.http_run import run_http
from tests.fuzz.stdio_run import run_stdio

SEED = 20_260_728
GROWTH_KIB = 128 * 1024

pytestmark = pytest.mark.timeout(900)


def test_hostile_requests_over_http_break_nothing() -> None:
    verdict = run_http(50_000, SEED, GROWTH_KIB)
    assert verdict.wrong == []
    # Otherwise the run would have tried nothing: most inputs must get past the first checks.
    assert verdict.statuses[200] > 12_000
    assert verdict.codes[-32602] > 1_000


def test_hostile_lines_over_stdio_break_nothing() -> None:
    verdict = run_stdio(50_000, SEED, GROWTH_KIB)
    assert verdict.wrong == []
    assert verdict.codes[-32602] > 1_000
