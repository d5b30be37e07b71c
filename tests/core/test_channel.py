"""What every channel can do, and what follows when a client disconnects."""

import pytest

from antiphon.errors import CannotAsk
from antiphon.protocol.request import NO_CHANNEL, ConnectedChannel, LegacyAsk


class Running(ConnectedChannel):
    """A channel of a round that counts how often it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.runs_in(self._count)

    def _count(self) -> None:
        self.cancelled += 1


async def test_a_channel_that_reaches_nobody_is_safe_to_use() -> None:
    await NO_CHANNEL.notify("notifications/progress", {})
    await NO_CHANNEL.visited("key")
    assert not NO_CHANNEL.can_ask
    assert await NO_CHANNEL.release_stream() is False
    NO_CHANNEL.on_disconnect(lambda: True)
    NO_CHANNEL.abort()
    with pytest.raises(CannotAsk):
        await NO_CHANNEL.ask({"who": LegacyAsk("elicitation/create", {})})


def test_a_round_is_cancelled_once_when_its_client_disconnects() -> None:
    channel = Running()
    channel.abort()
    assert channel.cancelled == 0, "its client is still there"
    channel.disconnect()
    channel.disconnect()
    channel.abort()
    assert (channel.cancelled, channel.aborted) == (1, True)


def test_a_round_that_somebody_waits_for_goes_on_until_nobody_does() -> None:
    channel, waiting = Running(), [True]
    channel.on_disconnect(lambda: waiting[0])
    channel.disconnect()
    assert channel.cancelled == 0
    waiting[0] = False
    channel.abort()
    assert channel.cancelled == 1


def test_a_round_that_has_ended_is_not_cancelled() -> None:
    channel = Running()
    channel.over = True
    channel.disconnect()
    assert (channel.cancelled, channel.aborted) == (0, False)


def test_whoever_decided_can_leave_again() -> None:
    channel = Running()
    channel.on_disconnect(lambda: True)
    channel.on_disconnect(None)
    channel.disconnect()
    assert channel.cancelled == 1
