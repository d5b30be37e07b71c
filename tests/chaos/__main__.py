"""`make chaos`: 200 calls at a time, every failpoint hit twenty times, databases restarted,
processes stopped for longer than their leases.

Four server processes behind nginx on SQLite, PostgreSQL and Redis, and through PgBouncer. Operators
settle effects of unknown end with the command line. Then as many calls that wait for people, who
decide on the console's pages. Prints the figures beside those of an earlier
version and fails when a promise was broken.
"""

import argparse

from tests.chaos.chaos_run import STORES, ChaosRun, run_all
from tests.chaos.held_run import HeldRun
from tests.chaos.judgement import table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="of every failpoint")
    parser.add_argument("--chance", type=float, default=0.005, help="of a kill at a failpoint")
    parser.add_argument("--lease", type=float, default=4.0)
    parser.add_argument("--restarts", type=int, default=8, help="of a database")
    parser.add_argument(
        "--pauses", type=int, default=20, help="of a process, some beyond its leases"
    )
    parser.add_argument("--store", choices=STORES, action="append", default=None)
    options = parser.parse_args()
    run = ChaosRun(
        options.clients,
        options.kills,
        options.chance,
        options.lease,
        options.restarts,
        options.pauses,
    )
    verdicts = run_all(run, options.store or list(STORES))
    print(table(verdicts), flush=True)
    for verdict in verdicts:
        verdict.check(kills=options.kills)
    held = HeldRun(options.clients, kills=3, chance=0.2, lease=options.lease)
    for store in ("sqlite", "postgresql"):
        if store in (options.store or STORES):
            judged = held.on(store)
            print(judged, flush=True)
            judged.check()


if __name__ == "__main__":
    main()
