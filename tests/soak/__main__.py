"""`make soak`: a hundred thousand calls over days of simulated time, on memory and SQLite.

PostgreSQL and Redis keep time themselves, so their time cannot be simulated; `make chaos` tries
them in real time.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.report import soak
from tests.soak.stores import fast_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--lanes", type=int, default=200, help="calls at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=["memory", "sqlite"], default=None)
    options = parser.parse_args()
    failed = False
    for kind in [options.store] if options.store else ["memory", "sqlite"]:
        with tempfile.TemporaryDirectory(prefix="antiphon-soak-", dir=fast_folder()) as folder:
            begun = time.monotonic()

            def progress(line: str, kind: str = kind, begun: float = begun) -> None:
                print(f"{kind}, {time.monotonic() - begun:.0f} s: {line}", flush=True)

            done = soak(
                kind,
                Path(folder),
                calls=options.calls,
                lanes=options.lanes,
                seed=options.seed,
                progress=progress,
            )
            print(f"--- {kind}, {time.monotonic() - begun:.0f} s")
            print("\n".join(done.lines), flush=True)
            failed = failed or bool(done.wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
