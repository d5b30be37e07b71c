"""Progress and log notifications of a running round. Owns when they are sent, not how."""

from math import isfinite
from typing import Any

from antiphon.core.request import LEVELS
from antiphon.core.text import safe
from antiphon.engine.execution import Execution
from antiphon.errors import HandlerError

_TEXT = 2_000


async def report(run: Execution, progress: float, total: float | None, message: str | None) -> None:
    """Send progress on the request's own channel (PROG-02)."""
    round = run.round
    if run.leg is not None:
        if not run.replay.replaying:
            await run.leg.say(message if message is not None else _share(progress, total))
        return
    if round.progress_token is None or run.replay.replaying:
        return
    if not (progress > run.progress and isfinite(progress)):
        return  # it must strictly increase; a step back is nobody's progress
    run.progress = progress
    params: dict[str, Any] = {"progressToken": round.progress_token, "progress": progress}
    if total is not None and isfinite(total):
        params["total"] = total
    if message is not None:
        params["message"] = safe(message, _TEXT)
    await round.channel.notify("notifications/progress", params)


def _share(progress: float, total: float | None) -> str:
    return f"{progress:g} of {total:g}" if total else f"{progress:g}"


async def log(run: Execution, data: Any, level: str, logger: str | None) -> None:
    """Send a log message if the request asked for that level (LOG-02)."""
    if level not in LEVELS:
        raise HandlerError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    round = run.round
    if round.log_level is None or run.replay.replaying:
        return
    if LEVELS.index(level) < LEVELS.index(round.log_level):
        return
    params: dict[str, Any] = {
        "level": level,
        "data": safe(data, _TEXT) if isinstance(data, str) else data,
    }
    if logger is not None:
        params["logger"] = logger
    await round.channel.notify("notifications/message", params)
