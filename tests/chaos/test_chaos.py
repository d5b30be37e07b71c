"""Four processes behind nginx, killed at every step: nothing happens twice and nothing is lost.

The short form; `make chaos` hits every failpoint twenty times with 200 calls at a time, on every
store.
"""

import pytest

from tests.chaos.chaos_run import ChaosRun, run_all
from tests.chaos.held_run import HeldRun
from tests.chaos.judgement import table


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("store", "restarts"), [("sqlite", 0), ("postgresql", 0), ("pgbouncer restarted", 1)]
)
def test_every_call_ends_and_nothing_happens_twice(
    store: str, restarts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ChaosRun(clients=24, kills=1, chance=0.03, lease=3.0, restarts=restarts, pauses=2)
    with capsys.disabled():
        print()
        verdicts = run_all(run, [store])
        print(table(verdicts))
    verdicts[0].check(kills=1)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_held_calls_are_done_once_and_only_after_a_decision(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = HeldRun(calls=40, kills=1, chance=0.6, lease=1.0).on(store)
    with capsys.disabled():
        print(f"\n{verdict}")
    verdict.check()
