"""The command line of an operator, imported once: each command is a fork that has done nothing yet.

A person's shell starts Python for every command; on a busy machine that takes longer than all
that is to be tried here. Reads a list of arguments from each line of standard input, and writes the
exit code and what the command has said.
"""

import json
import os
import sys

from antiphon.cli.app import app


def run(arguments: list[str]) -> tuple[int, str]:
    """Give one command; returns its exit code and what it said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_command(arguments, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        text = said.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def _be_the_command(arguments: list[str], writing: int) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        app(arguments, prog_name="antiphon")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
