"""The one back-off: how long to wait between tries. Sleeps nowhere and reads no clock."""

from collections.abc import Iterator


def back_off(first: float, most: float, *, within: float | None = None) -> Iterator[float]:
    """Yield the pauses between tries: each twice the last, up to `most` seconds.

    Args:
        first: The first pause.
        most: The longest pause.
        within: Ends when so many seconds have been spent in pauses; never ends by default.
    """
    pause, spent = first, 0.0
    while within is None or spent < within:
        yield pause
        spent += pause
        pause = min(pause * 2, most)
