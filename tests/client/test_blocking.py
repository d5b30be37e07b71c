"""The blocking client's own rule: which thread is told what."""

import signal

from antiphon import BlockingClient, Server


def test_interrupts_are_left_to_the_thread_that_waits_for_a_person() -> None:
    with BlockingClient(Server("quiet")) as client:
        blocked = client._wait(_blocked_signals)
    assert signal.SIGINT in blocked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def _blocked_signals() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
