"""The memory of this process."""

import gc
from pathlib import Path


def resident() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    gc.collect()
    return int(statm.read_text().split()[1]) * 4096
