"""Four server processes, each on a port of its own, and another one for each that dies.

Everything is imported once; a worker is a fork of what has done nothing yet, so that a killed one
is followed in milliseconds. Ended by SIGTERM, or with whoever started it.
"""

import asyncio
import os
import signal
import socket
import sys

import psycopg  # noqa: F401 - loaded here, so that no worker has to
import uvloop

import antiphon.stores.postgres
import antiphon.stores.sqlite  # noqa: F401
from antiphon.processes.http_server import serve_http
from tests.chaos.failpoint_server import application


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
    try:
        while os.getppid() == parent:
            told = signal.sigtimedwait(watched, 1.0)
            if told is not None and told.si_signo == signal.SIGTERM:
                break
            while (dead := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                listener = workers.pop(dead)
                workers[fork(listener)] = listener
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
