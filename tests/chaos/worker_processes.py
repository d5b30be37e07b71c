"""Four server processes, each on a port of its own, and another one for each that dies.

One that stops itself goes on after a while, often when its leases have ended.

Everything is imported once; a worker is a fork of what has done nothing yet, so that a killed one
is followed in milliseconds. Ended by SIGTERM, or with whoever started it.
"""

import asyncio
import importlib
import os
import random
import signal
import socket
import sys
import time

import psycopg  # noqa: F401 - loaded here, so that no worker has to
import uvloop

import antiphon.stores.postgres
import antiphon.stores.sqlite  # noqa: F401
from antiphon.transports.processes.http_server import serve_http

application = importlib.import_module(os.environ["CHAOS_APPLICATION"]).application
PAUSE = 1.6
"""The longest time that a process is stopped, in leases."""


def work(listener: socket.socket) -> None:
    """Be a worker."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        app = application(os.environ)
        runner.run(serve_http(app, sockets=[listener], announce=None))  # pyright: ignore[reportArgumentType]


def fork(listener: socket.socket) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work(listener)
        finally:
            os._exit(1)
    return pid


def main(*descriptors: str) -> None:
    parent = os.getppid()
    watched = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    listeners = [socket.socket(fileno=int(one)) for one in descriptors]
    workers = {fork(listener): listener for listener in listeners}
    longest = PAUSE * float(os.environ["CHAOS_LEASE"])
    stopped: dict[int, float] = {}
    try:
        while os.getppid() == parent:
            received = signal.sigtimedwait(watched, 0.1 if stopped else 1.0)
            if received is not None and received.si_signo == signal.SIGTERM:
                break
            while (changed := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0] != 0:
                pid, status = changed
                if os.WIFSTOPPED(status):
                    stopped[pid] = time.monotonic() + random.uniform(longest / 12, longest)
                    continue
                stopped.pop(pid, None)
                listener = workers.pop(pid)
                workers[fork(listener)] = listener
            for pid in [pid for pid, until in stopped.items() if until <= time.monotonic()]:
                del stopped[pid]
                os.kill(pid, signal.SIGCONT)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
