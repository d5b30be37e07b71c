"""Runs one soak, watches the memory of the process, and says in figures what came of it."""

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.simulated_time import SimulatedLoop, Stuck
from tests.soak.simulation import Simulation
from tests.soak.stores import Broken

GROWTH = 64 * 1024 * 1024
"""Bytes by which the process may grow after the first third of the calls."""


@dataclass(frozen=True)
class Done:
    """What came of a soak."""

    lines: list[str]
    wrong: list[str]
    ends: dict[str, int]
    counts: dict[str, int]


def soak(
    kind: str,
    folder: Path,
    *,
    calls: int,
    lanes: int,
    seed: int,
    progress: Callable[[str], None] | None = None,
    broken: Broken | None = None,
) -> Done:
    """Run a soak; `progress` is told thirty times how far it is."""
    with quiet_logs():
        return _soak(kind, folder, calls, lanes, seed, progress, broken)


@contextmanager
def quiet_logs() -> Generator[None]:
    """What servers log while they are dropped on purpose is of no interest."""
    loggers = [logging.getLogger(name) for name in ("antiphon", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _soak(
    kind: str,
    folder: Path,
    calls: int,
    lanes: int,
    seed: int,
    progress: Callable[[str], None] | None,
    broken: Broken | None,
) -> Done:
    simulation = Simulation(
        kind, folder, calls=calls, lanes=lanes, seed=seed, progress=progress, broken=broken
    )
    runner = asyncio.Runner(loop_factory=SimulatedLoop)
    try:
        runner.run(simulation.run())
        days = runner.get_loop().time() / 86_400
    finally:
        # A task of a server that was dropped hears nothing any more, not even its cancellation.
        with suppress(Stuck):
            runner.close()
    wrong = list(simulation.wrong)
    figures = simulation.figures
    grown = simulation.grown
    if grown > GROWTH:
        wrong.append(f"the process grew by {grown >> 20} MiB")
    lines = [
        f"{sum(figures.ends.values())} calls over {days:.1f} days, "
        f"{figures.counts['rounds']} rounds, {simulation.shop.acted} effects",
        "ends: " + ", ".join(f"{name} {count}" for name, count in sorted(figures.ends.items())),
        *(f"{name}: {count}" for name, count in sorted(figures.counts.items())),
        f"most rows at a time: {dict(figures.peak)}",
        f"left in the end: {simulation.left}, in a new store: {simulation.expected}",
        f"memory after a third of the calls and in the end: +{grown >> 20} MiB",
        f"wrong: {len(wrong)}",
        *wrong[:10],
    ]
    return Done(lines, wrong, dict(figures.ends), dict(figures.counts))
