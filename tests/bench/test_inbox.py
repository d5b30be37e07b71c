"""What the inbox costs when much waits in it; `python -m bench.inbox` has 100,000."""

from contextlib import ExitStack

import pytest

from bench.inbox import TIMES, compare, stores

MANY = 6_000
"""A scan of so many rows takes many times as long as a page of them by an index."""


@pytest.mark.timeout(200)
async def test_a_page_and_a_decision_cost_the_same_however_much_waits():
    with ExitStack() as stack:
        for name, few, many in stores(stack):
            before, after = await compare(few, many, MANY)
            assert after.page <= TIMES * before.page, (name, before, after)
            assert after.decision <= TIMES * before.decision, (name, before, after)
