"""Bytes to lines, and output that never blocks the loop and loses nothing."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.transports.pipes import Output, PollOutput, Splitter, ThreadOutput


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_lines_are_the_same_however_the_bytes_arrive(size: int) -> None:
    data = b"one\n\ntwo\r\nthree\nfour"
    splitter = Splitter(10)
    lines = [
        line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])
    ]
    assert lines == [b"one", b"", b"two\r", b"three"]
    assert splitter.end() == b"four"


@pytest.mark.parametrize("size", [1, 4, 100])
def test_an_overlong_line_is_given_as_none_and_the_next_is_whole(size: int) -> None:
    data = b"12345\n123456\n1\n" + b"x" * 50 + b"\n12345\n1234567"
    splitter = Splitter(5)
    lines = [
        line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])
    ]
    assert lines == [b"12345", None, b"1", None, b"12345"]
    assert splitter.end() is None
    assert splitter.end() == b""


def test_an_endless_line_is_not_kept() -> None:
    splitter = Splitter(1000)
    for _ in range(10_000):
        assert list(splitter.feed(b"x" * 1000)) == []
    assert sum(map(len, splitter._parts)) <= 1000


OUTPUTS: list[Callable[[int, Callable[[], None]], Output]] = [PollOutput, ThreadOutput]


async def read_exactly(fd: int, size: int) -> bytes:
    return await asyncio.to_thread(_read_exactly, fd, size)


def _read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(fd, 65536)
    return data


@pytest.mark.parametrize("make", OUTPUTS)
async def test_what_does_not_fit_is_written_when_it_is_read(make: Any) -> None:
    reader, writer = os.pipe()
    output = make(writer, lambda: None)
    messages = [bytes([65 + n]) * 100_000 + b"\n" for n in range(20)]
    for message in messages:
        output.write(message)  # far more than a pipe holds, and nobody reads yet
    assert output.waiting > 1_000_000
    data = b"".join(messages)
    received = asyncio.create_task(read_exactly(reader, len(data)))
    async with asyncio.timeout(10):
        await output.drain(0)
    assert await received == data
    assert (output.waiting, output.taken) == (0, len(data))
    assert os.get_blocking(writer)
    output.close()
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("make", OUTPUTS)
async def test_a_reader_that_is_gone_is_told_once_and_nothing_waits(make: Any) -> None:
    reader, writer = os.pipe()
    gone = asyncio.Event()
    output = make(writer, gone.set)
    os.close(reader)
    output.write(b"x" * 100_000)
    async with asyncio.timeout(20):
        await gone.wait()
        output.write(b"more")
        await output.drain(0)
    assert output.broken
    output.close()
    os.close(writer)


async def test_a_reader_that_goes_away_frees_whoever_waits_for_it() -> None:
    reader, writer = os.pipe()
    gone = asyncio.Event()
    output = PollOutput(writer, gone.set)
    output.write(b"x" * 3_000_000)
    waiting = asyncio.create_task(output.drain())
    await asyncio.sleep(0)
    os.close(reader)
    async with asyncio.timeout(20):
        await waiting
        await gone.wait()
    output.close()
    os.close(writer)


async def test_a_descriptor_that_somebody_made_non_blocking_is_no_trouble() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    output = PollOutput(writer, lambda: None)
    data = b"y" * 500_000
    output.write(data)
    received = asyncio.create_task(read_exactly(reader, len(data)))
    async with asyncio.timeout(10):
        await output.drain(0)
    assert await received == data
    output.close()
    os.close(reader)
    os.close(writer)
