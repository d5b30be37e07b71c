"""`python -m tests.fuzz --inputs 1000000`: hostile inputs and gateway rules, with figures."""

import argparse
import sys
import time

from tests.fuzz.http_run import run_http
from tests.fuzz.policy_run import run_policies
from tests.fuzz.stdio_run import run_stdio

STDIO_SHARE = 0.25
GROWTH_KIB = 256 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    lines = int(options.inputs * STDIO_SHARE)
    wrong: list[str] = []
    for name, run, count in (
        ("HTTP", run_http, options.inputs - lines),
        ("stdio", run_stdio, lines),
    ):
        began = time.monotonic()
        verdict = run(count, options.seed, GROWTH_KIB)
        print(verdict.summary(name, time.monotonic() - began), flush=True)
        wrong += verdict.wrong
    began = time.monotonic()
    policies = run_policies(options.inputs, options.seed)
    print(policies.summary("gateway rules", time.monotonic() - began), flush=True)
    wrong += policies.wrong
    for one in wrong:
        print("WRONG", one)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
