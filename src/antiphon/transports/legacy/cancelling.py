"""Waiting for a task of ours inside a scope of the SDK, which cancels again and again."""

import asyncio
from typing import Any

import anyio


async def ended(task: asyncio.Future[Any]) -> None:
    """Wait until a task has ended; if the caller is cancelled meanwhile, cancel it once.

    The SDK's scopes cancel at every turn of the loop until their task has ended; an effect that
    is shielded until it is settled would keep the loop spinning.
    """
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved: its client is gone
        raise
