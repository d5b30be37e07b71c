"""How often a task is run again after a failed run. Owns the counting; does no I/O.

A run has failed when it ended in an unexpected exception, or when its process ended in it: then
nobody wrote down how it ended, and the epoch of the next run shows the gap. Whenever a run comes
further than all before it, counting starts again.
"""

from itertools import islice

from antiphon.core.retry import back_off
from antiphon.tasks.state import TaskState

_FIRST_PAUSE, _MOST_PAUSE = 0.5, 60.0
"""Seconds between two tries."""


def count_lost_run(state: TaskState, epoch: int) -> bool:
    """Count the run before the one of this epoch if it was lost; returns whether it was."""
    lost = epoch > state.epoch + 1
    if lost:
        state.failures += 1
        state.epoch = epoch - 1
    return lost


def pause_before_next(state: TaskState) -> float:
    """Return for how many seconds a task waits after so many failed runs."""
    pauses = back_off(_FIRST_PAUSE, _MOST_PAUSE)
    return next(islice(pauses, max(0, state.failures - 1), None))
