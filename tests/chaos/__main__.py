"""`make chaos`: 200 calls at a time, every failpoint hit twenty times, on SQLite and PostgreSQL."""

import argparse
import tempfile
from pathlib import Path

from tests import servers
from tests.chaos.chaos_run import Night


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="of every failpoint")
    parser.add_argument("--chance", type=float, default=0.005, help="of a kill at a failpoint")
    parser.add_argument("--lease", type=float, default=4.0)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default=None)
    options = parser.parse_args()
    night = Night(options.clients, options.kills, options.chance, options.lease)
    for name in [options.store] if options.store else ["sqlite", "postgres"]:
        with tempfile.TemporaryDirectory(prefix="antiphon-chaos-") as place:
            folder = Path(place)
            if name == "sqlite":
                night.run(name, f"sqlite:///{folder / 'ledger.db'}", folder)
            else:
                with servers.postgres() as dsn:
                    night.run(name, dsn, folder)


if __name__ == "__main__":
    main()
